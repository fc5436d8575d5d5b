"""Peers that serve the folder of a classifier or a reranker, each as its own documentation has it.

`python benchmarks/serving_peers.py PEER FOLDER PORT`, in an environment with that peer's packages:
nothing of ours is imported. All listen at 127.0.0.1. LitServe has a file of its own.
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve_pipeline(folder: Path, port: int) -> None:
    """FastAPI and the pipeline of transformers: a plain function, which FastAPI runs in threads."""
    import uvicorn
    from fastapi import FastAPI
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(folder), device="cpu")
    app = FastAPI()

    @app.post("/classify")
    def answer(body: dict[str, str]) -> list[dict[str, Any]]:
        return classify(body["inputs"], top_k=None)

    uvicorn.run(app, host="127.0.0.1", port=port)


def serve_cross_encoder(folder: Path, port: int) -> None:
    """FastAPI and the cross-encoder of sentence-transformers."""
    import uvicorn
    from fastapi import FastAPI
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    app = FastAPI()

    @app.post("/rerank")
    def answer(body: dict[str, Any]) -> list[dict[str, Any]]:
        found = model.rank(body["query"], body["texts"])
        return [{"index": each["corpus_id"], "score": float(each["score"])} for each in found]

    uvicorn.run(app, host="127.0.0.1", port=port)


def serve_mlflow(folder: Path, port: int) -> None:
    """`mlflow models serve`, of the pipeline as MLflow logs it."""
    from mlflow.transformers import save_model
    from transformers import pipeline

    saved = f"{tempfile.mkdtemp(dir=folder.parent)}/logged"
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    save_model(classify, saved, pip_requirements=[])
    command = ["mlflow", "models", "serve", "--model-uri", saved, "--env-manager", "local"]
    _become([*command, "--host", "127.0.0.1", "--port", str(port)])


def serve_infinity(folder: Path, port: int) -> None:
    """Infinity; without BetterTransformer, which the transformers it runs with do not have."""
    command = ["infinity_emb", "v2", "--model-id", str(folder), "--served-model-name", "classifier"]
    command += ["--engine", "torch", "--device", "cpu", "--dtype", "float32"]
    command += ["--no-bettertransformer", "--host", "127.0.0.1", "--port", str(port)]
    _become(command)


def serve_onnxruntime(folder: Path, port: int) -> None:
    """FastAPI and ONNX Runtime: a text at a time without padding, in FastAPI's threads."""
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()  # pyright: ignore[reportAttributeAccessIssue] - not in its types
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))  # 0: its default
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    _serve_graph(folder, port, lambda inputs: session.run(["logits"], inputs)[0])


def serve_openvino(folder: Path, port: int) -> None:
    """FastAPI and OpenVINO, the same; its hint for servers, and a request for each thread."""
    from openvino import Core

    hints: dict[str, Any] = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    if "OMP_NUM_THREADS" in os.environ:
        hints["INFERENCE_NUM_THREADS"] = int(os.environ["OMP_NUM_THREADS"])
    graph = Core().compile_model(folder / "openvino_model.xml", "CPU", hints)
    of_thread = threading.local()

    def run(inputs: dict[str, Any]) -> Any:  # noqa: ANN401 - an array
        if not hasattr(of_thread, "request"):
            of_thread.request = graph.create_infer_request()
        return of_thread.request.infer(inputs)["logits"]

    _serve_graph(folder, port, run)


def _serve_graph(folder: Path, port: int, run: Callable[[dict[str, Any]], Any]) -> None:
    """Serves an exported classifier, whose logits `run` computes."""
    import numpy as np
    import uvicorn
    from fastapi import FastAPI
    from tokenizers import Tokenizer

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    labels = [config["id2label"][str(number)] for number in range(len(config["id2label"]))]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(config["bertline_export"]["max_length"])
    app = FastAPI()

    @app.post("/classify")
    def answer(body: dict[str, str]) -> list[dict[str, Any]]:
        row = tokenizer.encode(body["inputs"])
        given = (row.ids, row.attention_mask, row.type_ids)
        names = ("input_ids", "attention_mask", "token_type_ids")
        (logits,) = run({name: np.array([ids]) for name, ids in zip(names, given, strict=True)})
        shares = np.exp(logits - logits.max())
        scores = (shares / shares.sum()).tolist()
        return [{"label": labels[n], "score": scores[n]} for n in np.argsort(-shares).tolist()]

    uvicorn.run(app, host="127.0.0.1", port=port)


def _become(command: list[str]) -> None:
    """Runs a program of this environment in the place of this process."""
    os.execv(Path(sys.executable).with_name(command[0]), command)


PEERS = {
    "pipeline": serve_pipeline,
    "cross-encoder": serve_cross_encoder,
    "mlflow": serve_mlflow,
    "infinity": serve_infinity,
    "onnxruntime": serve_onnxruntime,
    "onnxruntime, int8": serve_onnxruntime,
    "openvino": serve_openvino,
    "openvino, int8": serve_openvino,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](Path(sys.argv[2]).absolute(), int(sys.argv[3]))

"""Peers that serve the folder of a classifier or a reranker, each as its own documentation has it.

`python benchmarks/serving_peers.py PEER FOLDER PORT`, in an environment with that peer's packages:
nothing of ours is imported. All listen at 127.0.0.1. LitServe has a file of its own.
"""

import os
import sys
import tempfile
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


def _become(command: list[str]) -> None:
    """Runs a program of this environment in the place of this process."""
    os.execv(Path(sys.executable).with_name(command[0]), command)


PEERS = {
    "pipeline": serve_pipeline,
    "cross-encoder": serve_cross_encoder,
    "mlflow": serve_mlflow,
    "infinity": serve_infinity,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](Path(sys.argv[2]).absolute(), int(sys.argv[3]))

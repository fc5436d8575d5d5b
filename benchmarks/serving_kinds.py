"""The servers of the benchmark: ours under uvicorn and under Ray Serve, and the peers."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.served import Command, Kind, Scores, environment_of

NAME = "classifier"
UVICORN, RAY_SERVE = "ours, uvicorn", "ours, Ray Serve"
INT8 = f"{UVICORN}, int8"
RAY_VARIABLES = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_ADDRESS": "local",
}
"""Those of infra/ray-serve.env, and a cluster of its own."""

_TORCH = ("transformers", "torch>=2.11,<2.14")
_INFINITY = (
    *("infinity-emb[server,torch]==0.0.77", "torch>=2.11,<2.14"),
    # What its last version, of 2025, does not run without.
    *("numpy<2", "transformers<5", "sentence-transformers<4", "click<8.2", "typer<0.13"),
)


def kinds() -> dict[str, Kind]:
    """All servers by name, ours first."""
    ours = [
        Kind(UVICORN, _uvicorn, "/v1/classify", _inputs, _scores_of_ours),
        Kind(INT8, _uvicorn, "/v1/classify", _inputs, _scores_of_ours),
        Kind(
            *(RAY_SERVE, _ray_serve, "/v1/classify", _inputs, _scores_of_ours),
            environment=RAY_VARIABLES,
        ),
    ]
    peers = [
        _peer("pipeline", "/classify", ("fastapi", "uvicorn", *_TORCH), _inputs, _scores),
        _peer("litserve", "/predict", ("litserve", *_TORCH), _inputs, _scores),
        _peer("mlflow", "/invocations", ("mlflow", "psutil", *_TORCH), _row, _scores_of_mlflow),
        _peer("infinity", "/classify", _INFINITY, _input, _scores_of_infinity),
    ]
    return {kind.name: kind for kind in (*ours, *peers)}


def _peer(name: str, path: str, packages: tuple[str, ...], body: Any, scores: Any) -> Kind:  # noqa: ANN401
    telemetry = {"DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1"}
    return Kind(name, partial(_of_peer, name), path, body, scores, packages, telemetry)


def _of_peer(name: str, folder: Path, port: int, work: Path) -> Command:
    python = environment_of(kinds()[name], work) / "bin" / "python"
    if name == "litserve":
        return [python, Path(__file__).with_name("serving_litserve.py"), folder, port]
    return [python, Path(__file__).with_name("serving_peers.py"), name, folder, port]


def _uvicorn(folder: Path, port: int, work: Path) -> Command:
    del work
    model = f"{NAME}={folder}"
    return [sys.executable, "-m", "serving", "--model", model, "--port", port]


def _ray_serve(folder: Path, port: int, work: Path) -> Command:
    config = {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "bertline",
                "route_prefix": "/",
                "import_path": "serving.deployment:build",
                "args": {"model": [f"{NAME}={folder}"], "insecure": True},
                "deployments": [{"name": "Server", "ray_actor_options": {"num_cpus": 2}}],
            }
        ],
    }
    path = work / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return [Path(sys.executable).with_name("serve"), "run", path]


def _inputs(text: str | Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    return {"inputs": text}


def _row(text: str) -> Any:  # noqa: ANN401 - JSON
    return {"inputs": [text]}


def _input(text: str) -> Any:  # noqa: ANN401 - JSON
    return {"model": NAME, "input": [text]}


def _scores(answer: Sequence[Mapping[str, Any]]) -> Scores:
    return {each["label"]: each["score"] for each in answer}


def _scores_of_ours(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return _scores(answer["results"][0]["scores"])


def _scores_of_mlflow(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return _scores(answer["predictions"])


def _scores_of_infinity(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return _scores(answer["data"][0])

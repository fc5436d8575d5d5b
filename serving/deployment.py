"""The same application as Ray Serve's ingress: `serve run serving.deployment:build model=FOLDER`.

One deployment holds the models and answers HTTP, in one hop; `serve deploy infra/serve.yaml` does
it on a cluster.
"""

import logging
import os
from pathlib import Path
from typing import Any

import ray
import torch
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve import Application

from bert_core.errors import UserError
from bert_core.memory import leave_what_exists_alone
from serving.app import create_app
from serving.cross_origin import Origin
from serving.engine import Engine
from serving.keys import read_keys
from serving.limits import Limits
from serving.model_sources import fetched, named_models
from serving.models import Products

_LOG = logging.getLogger("ray.serve")

INGRESS_VARIABLES = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
"""What makes Ray Serve's ingress HAProxy, a tenth of its Python proxy's work for a request.

To be set on every node before Serve starts; infra/ray-serve.env has them.
"""


class DeploymentArguments(BaseModel):
    """What `build` is told: `key=value` after `serve run`, or `args` of the deployed file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: tuple[str, ...] = Field(
        min_length=1,
        description="model folder seen by all nodes, models:/NAME@ALIAS or models:/NAME/3 of"
        " MLflow's registry, or KEY=MODEL; several",
    )
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow that models:/ addresses are of, reached by all nodes; by default each"
        " node's MLFLOW_TRACKING_URI, or its store under ~/.bertline",
    )
    cache: Path | None = Field(
        default=None,
        description="folder of fetched models on each node; by default ~/.bertline/models",
    )
    cors_origins: tuple[Origin, ...] = Field(
        default=(), description="origins of pages that may ask from browsers; several"
    )
    api_key_file: Path | None = None
    insecure: bool = False
    precision: Products = "float32"
    limits: Limits = Limits()

    @field_validator("model", "cors_origins", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:  # noqa: ANN401 - what a command line holds
        """On a command line several are divided by commas."""
        return given.split(",") if isinstance(given, str) else given


@serve.deployment(max_ongoing_requests=1024)
@serve.ingress()
class Server:
    """Models, their engine and the application, in one replica."""

    def __init__(self, arguments: DeploymentArguments) -> None:
        assigned = ray.get_runtime_context().get_assigned_resources()
        threads = max(1, int(assigned.get("CPU", 1)))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # Here and not in `build`: the folder has to be in the cache of this replica's node.
        sources = fetched(
            named_models(arguments.model),
            tracking_uri=arguments.tracking_uri,
            cache=arguments.cache,
        )
        self._engine = Engine.of_folders(
            *(sources, device, arguments.limits, threads, arguments.precision)
        )
        keys = None if arguments.api_key_file is None else read_keys(arguments.api_key_file)
        self._app = create_app(self._engine, keys, arguments.cors_origins)
        leave_what_exists_alone()
        wanted = INGRESS_VARIABLES.items()
        missing = [f"{name}={value}" for name, value in wanted if os.environ.get(name) != value]
        if missing:
            _LOG.warning(
                "requests come through Ray Serve's Python proxy, ten times the work of HAProxy:"
                " start Ray on every node with %s",
                " ".join(missing),
            )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """What Ray Serve passes requests to."""
        return self._app

    def check_health(self) -> None:
        """Raises where an encoder's thread has ended; Ray Serve then starts another replica."""
        if not all(each.batcher.is_alive for each in self._engine.models.values()):
            raise RuntimeError("an encoder's thread has ended")

    def __del__(self) -> None:
        """Ends the threads of the encoders; Ray Serve has let requests end before."""
        if hasattr(self, "_engine"):
            self._engine.close()


def build(arguments: DeploymentArguments) -> Application:
    """The application for `serve run` and `serve deploy`.

    Raises `UserError` for a server that everybody could use unasked: Ray Serve listens at all
    addresses of a node.
    """
    if arguments.api_key_file is None and not arguments.insecure:
        raise UserError(
            "Ray Serve listens beyond this machine, and no keys are asked for",
            "api_key_file",
            "give it, or say insecure=true in a closed network",
        )
    for source in (*named_models(arguments.model).values(), arguments.cache):
        if isinstance(source, Path) and not source.is_absolute():
            raise UserError(
                "replicas have a working directory of their own", str(source), "give whole paths"
            )
    return Server.bind(arguments)

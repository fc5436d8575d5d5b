"""The same application as Ray Serve's ingress: `serve run serving.deployment:build model=FOLDER`.

One deployment holds the models and answers HTTP, in one hop; `serve deploy infra/serve.yaml` does
it on a cluster.
"""

import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve import Application

from bert_core.errors import UserError
from bert_core.machine import freeze_garbage_collector
from serving.app import create_app
from serving.cluster import Replica
from serving.cross_origin import Host, Origin
from serving.followed import Place
from serving.keys import read_keys
from serving.limits import Limits
from serving.model_sources import SharedSource, named_models, versions_beside
from serving.models import Products
from serving.ray_export import RayExport
from serving.startup import RegistryAccess, RunningEngine, loader_for
from serving.token_bucket import TokenBucket
from serving.tracing import OtlpEndpoint, TraceShare, start_tracing
from serving.traffic import Role
from serving.watch_actor import NodeWatch
from serving.webhook import read_secret

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
    canary: tuple[str, ...] = Field(
        default=(), description="as of python -m serving: NAME=MODEL,SHARE; several"
    )
    shadow: tuple[str, ...] = Field(
        default=(), description="as of python -m serving: NAME=MODEL,SHARE; several"
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
    cache_gib: float = Field(
        default=20.0,
        ge=0,
        allow_inf_nan=False,
        description="as of python -m serving: GiB above which unused models are removed from it",
    )
    poll_seconds: float = Field(
        default=2.0, ge=0, description="as of python -m serving: when MLflow is asked again"
    )
    cors_origins: tuple[Origin, ...] = Field(
        default=(), description="origins of pages that may ask from browsers; several"
    )
    allowed_hosts: tuple[Host, ...] = Field(
        default=(), description="as of python -m serving: names that it may be asked by; several"
    )
    otlp_endpoint: OtlpEndpoint | None = None
    trace_share: TraceShare = 1.0
    api_key_file: Path | None = None
    webhook_secret_file: Path | None = None
    insecure: bool = False
    precision: Products = "float32"
    limits: Limits = Limits()

    @field_validator("model", "cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:  # noqa: ANN401 - what a command line holds
        """On a command line several are divided by commas."""
        return given.split(",") if isinstance(given, str) else given

    @field_validator("canary", "shadow", mode="before")
    @classmethod
    def _one_or_several_with_shares(cls, given: Any) -> Any:  # noqa: ANN401 - as above
        """The same of `NAME=MODEL,SHARE`, which has a comma of its own."""
        return re.findall(r"[^,]+,?[^,]*", given) if isinstance(given, str) else given

    @property
    def beside(self) -> dict[Role, dict[str, SharedSource]]:
        """Other versions of the models, by role and name; raises `UserError` for what is none."""
        given: dict[Role, Sequence[str]] = {"canary": self.canary, "shadow": self.shadow}
        return versions_beside(named_models(self.model), given)


@serve.deployment(max_ongoing_requests=1024)
@serve.ingress()
class Server:
    """Models, their engine and the application, in one replica."""

    def __init__(self, arguments: DeploymentArguments) -> None:
        assigned = ray.get_runtime_context().get_assigned_resources()
        threads = max(1, int(assigned.get("CPU", 1)))
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        context = serve.get_replica_context()
        replica = context.replica_id.unique_id
        tracing = start_tracing(arguments.otlp_endpoint, arguments.trace_share, replica)
        keys = None if arguments.api_key_file is None else read_keys(arguments.api_key_file)
        secret = arguments.webhook_secret_file
        webhook_secret = None if secret is None else read_secret(secret)
        # Here and not in `build`: the folder has to be in the cache of this replica's node.
        self._running = RunningEngine.start(
            named_models(arguments.model),
            loader_for(device, arguments.limits, threads, arguments.precision),
            arguments.limits,
            RegistryAccess(
                *(arguments.tracking_uri, arguments.cache, arguments.poll_seconds, NodeWatch),
                cache_gib=arguments.cache_gib,
            ),
            arguments.beside,
            _agreeing(arguments, {} if keys is None else keys.buckets),
        )
        self._export = RayExport(
            self._running.engine.metrics.registry,
            {"application": context.app_name, "replica": replica},
        )
        self._app = create_app(
            self._running.engine,
            keys,
            arguments.cors_origins,
            tracing,
            self._running.steering,
            webhook_secret,
            arguments.allowed_hosts,
        )
        self._app.openapi()  # made once, which takes a second, so that nobody's request waits
        freeze_garbage_collector()
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
        """Raises where an encoder computes no more; Ray Serve then starts another replica."""
        self._running.engine.check_health()

    def __del__(self) -> None:
        """Ends the threads of the encoders; Ray Serve has let requests end before."""
        if hasattr(self, "_export"):
            self._export.close()
        if hasattr(self, "_running"):
            self._running.close()


def _agreeing(arguments: DeploymentArguments, buckets: Mapping[str, TokenBucket]) -> Replica:
    """What has this replica agree with the others of its application.

    Those of other models or other versions beside them, as while an update is rolled out, agree
    among themselves.
    """
    beside: dict[Place, SharedSource] = {
        (role, name): each for role, some in arguments.beside.items() for name, each in some.items()
    }
    begun_with = repr((arguments.model, arguments.canary, arguments.shadow))
    digest = hashlib.sha256(begun_with.encode()).hexdigest()[:12]
    application = serve.get_replica_context().app_name
    return Replica(f"{application}-{digest}", buckets, beside)


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
    beside = [each.source for some in arguments.beside.values() for each in some.values()]
    for source in (*named_models(arguments.model).values(), *beside, arguments.cache):
        if isinstance(source, Path) and not source.is_absolute():
            raise UserError(
                "replicas have a working directory of their own", str(source), "give whole paths"
            )
    return Server.bind(arguments)

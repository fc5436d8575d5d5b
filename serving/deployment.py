"""The same application as Ray Serve's ingress: `serve run serving.deployment:build model=FOLDER`.

One deployment holds the models and answers HTTP, in one hop; `serve deploy infra/serve.yaml` does
it on a cluster.
"""

import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import field_validator
from ray import serve
from ray.serve import Application
from ray.util.metrics import Gauge

from bert_core.errors import UserError
from serving.app import start_application
from serving.keys import TokenBucket, read_keys
from serving.rollout.replicas import NodeWatcher, Replica
from serving.settings import ApplicationSettings

_LOG = logging.getLogger("ray.serve")

INGRESS_VARIABLES = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
"""Makes HAProxy Ray Serve's ingress, at a tenth of its Python proxy's work a request.

They have to be set on every node before Serve starts; infra/ray-serve.env has them.
"""


class DeploymentArguments(ApplicationSettings):
    """The arguments of `build`: `key=value` after `serve run`, or `args` of the deployed file.

    They mean what they mean to `python -m serving`; of lists a command line has several. All nodes
    see the model folders, and reach MLflow; each has its own cache.
    """

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


EXPORT_SECONDS = 5.0
"""Between two looks at the counts; Ray passes them on every ten."""
_OURS = "bertline_"

_Series = tuple[tuple[str, str], ...]


class RayExport:
    """Copies a registry's samples to Ray, for Prometheus at the metrics port of the replica's node.

    A scrape of `/metrics` would reach one replica by chance. Every sample becomes a gauge with
    `tags` added: a gauge goes when its process does, and Prometheus rates it as it does a counter.
    Ray puts `ray_` before the names; infra/monitoring takes it away again.
    """

    def __init__(
        self, registry: CollectorRegistry, tags: Mapping[str, str], seconds: float = EXPORT_SECONDS
    ) -> None:
        self._registry, self._tags, self._seconds = registry, dict(tags), seconds
        self._gauges: dict[str, Any] = {}
        self._shown: set[tuple[str, _Series]] = set()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-export", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed.set()
        self._thread.join()

    def copy(self) -> None:
        """Copies all samples once; those that are there no more become no number, which is none."""
        shown: set[tuple[str, _Series]] = set()
        for name, labels, value in self._samples():
            tags = labels | self._tags
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = Gauge(name, name, tuple(tags))
            gauge.set(value, tags)
            shown.add((name, tuple(tags.items())))
        for name, series in self._shown - shown:
            self._gauges[name].set(float("nan"), dict(series))
        self._shown = shown

    def _samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name.startswith(_OURS) and not sample.name.endswith("_created"):
                    yield sample.name, dict(sample.labels), float(sample.value)

    def _run(self) -> None:
        while not self._is_closed.wait(self._seconds):
            try:
                self.copy()
            except Exception:  # the next copy is made nevertheless
                _LOG.exception("exporting metrics")


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
        keys = None if arguments.api_key_file is None else read_keys(arguments.api_key_file)
        # Here and not in `build`: the folder has to be in the cache of this replica's node.
        self._app, self._running = start_application(
            *(arguments, device, threads, keys),
            coordination=_coordination(arguments, {} if keys is None else keys.buckets),
            watcher_of=NodeWatcher,
            instance=replica,
        )
        self._export = RayExport(
            self._running.engine.metrics.registry,
            {"application": context.app_name, "replica": replica},
        )
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


def _coordination(arguments: DeploymentArguments, buckets: Mapping[str, TokenBucket]) -> Replica:
    """How this replica agrees with the others of its application.

    Replicas with other models or variants, as during an update, agree among themselves.
    """
    begun_with = repr((arguments.model, arguments.canary, arguments.shadow))
    digest = hashlib.sha256(begun_with.encode()).hexdigest()[:12]
    application = serve.get_replica_context().app_name
    return Replica(f"{application}-{digest}", buckets, arguments.variants)


def build(arguments: DeploymentArguments) -> Application:
    """The application for `serve run` and `serve deploy`.

    Raises `UserError` for a server that everybody could use unasked: Ray Serve listens at all
    addresses of a node.
    """
    if arguments.api_key_file is None and not arguments.insecure:
        what = "Ray Serve listens beyond this machine, and no keys are asked for"
        raise UserError(what, "api_key_file", "give it, or say insecure=true in a closed network")
    variants = [variant.source for variant in arguments.variants.values()]
    for source in (*arguments.models.values(), *variants, arguments.cache):
        if isinstance(source, Path) and not source.is_absolute():
            raise UserError(
                "replicas have a working directory of their own", str(source), "give whole paths"
            )
    return Server.bind(arguments)

"""Servers of small models."""

import shutil
import socket
import sqlite3
import subprocess
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from forked_programs import ForkedProgram
from running import serving, start, write_models

from serving.app import RunningEngine, loader_for
from serving.limits import Limits
from serving.rollout.watcher import WatchSettings


@dataclass
class Registry:
    """A store of MLflow, and how models come into it."""

    uri: str
    run_id: str
    tags: dict[str, str] = field(default_factory=lambda: {"data.sha256": "ab" * 32})

    @property
    def database(self):
        """The file of the store."""
        return Path(self.uri.removeprefix("sqlite:///"))

    @property
    def client(self):
        """MLflow's client of the store."""
        from workflows.runs.mlflow_run import open_client

        return open_client(self.uri)

    def move_artifacts(self, location, name, version):
        """Has MLflow say that the artifacts of a version are at another address."""
        source = self.client.get_model_version(name, str(version)).source
        known = (location, source.removeprefix("models:/"))
        with closing(sqlite3.connect(self.database)) as store, store:
            store.execute(
                "UPDATE logged_models SET artifact_location = ? WHERE model_id = ?", known
            )

    def register(self, folder, name, *aliases):
        """The number of the folder's new version."""
        from workflows.versions.registration import register_model_folder

        return register_model_folder(
            folder,
            name=name,
            run_id=self.run_id,
            tracking_uri=self.uri,
            card="",
            tags=self.tags,
            metrics={"dev/f1": 0.75},
            aliases=aliases,
        )


@pytest.fixture(scope="session")
def registry(store_template, tmp_path_factory, small_models):
    """MLflow with the entities as `people@champion` and the sentiment as `mood@champion`."""
    from registered_models import copy_store

    from workflows.runs.mlflow_run import create_store, open_client

    uri = copy_store(store_template, tmp_path_factory.mktemp("registry"))
    create_store(uri)  # its artifacts are beside it from now on
    made = Registry(uri, open_client(uri).create_run("0").info.run_id)
    made.register(small_models["entities"], "people", "champion")
    made.register(small_models["sentiment"], "mood", "champion")
    return made


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory, store_template):
    """`mlflow server`, which passes artifacts on, and sends webhooks to this machine."""
    from cryptography.fernet import Fernet

    from benchmarks.mlflow_server import MlflowServer

    folder = tmp_path_factory.mktemp("served")
    shutil.copy(store_template, folder / "server.db")
    server = MlflowServer(folder)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "ALLOWED_SCHEMES": "http,https",
            "ALLOW_PRIVATE_IPS": "true",
            "CACHE_TTL": "0",  # else MLflow knows a new webhook after a minute
            "SECRET_ENCRYPTION_KEY": Fernet.generate_key().decode(),
        }.items():
            environment.setenv(f"MLFLOW_WEBHOOK_{name}", value)
        server.start()
    yield server
    server.kill()


@pytest.fixture
def copied_registry(registry, tmp_path):
    """A store of its own, to be changed or to be gone."""
    from registered_models import copy_store

    return replace(registry, uri=copy_store(registry.database, tmp_path / "store"))


@pytest.fixture(scope="session")
def small_models(tmp_path_factory):
    """Folders of small models by name."""
    return write_models(tmp_path_factory.mktemp("small_models"))


@pytest.fixture(scope="session")
def server(small_models):
    """All small models behind one server."""
    with serving(small_models) as running:
        yield running


@pytest.fixture
def start_server():
    """Starts servers, as `running.serving`, and stops them in the end."""
    with ExitStack() as stack:
        yield lambda *folders, **more: stack.enter_context(serving(*folders, **more))


class ForkedWatches(list):
    """Processes, and what is called within the next ones."""

    before = None


@pytest.fixture
def quick_watches(monkeypatch):
    """Has `serving.watch` forked, and gives the processes; `before` is called within each."""
    started = ForkedWatches()

    def popen(arguments, stderr):
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        options |= {"text": True, "preexec_fn": started.before}
        started.append(ForkedProgram(["serving.watch", *arguments], **options))
        return started[-1]

    monkeypatch.setattr("serving.rollout.watcher._popen", popen)
    return started


@pytest.fixture
def start_rollout(tmp_path, quick_watches):
    """Starts servers that can be told who answers, over one cache, `models`; by their registry."""
    stops = []

    def begin(models, variants=None, uri=None, *, poll_seconds=0.1, coordination=None, **more):
        limits = Limits()
        loader = loader_for(torch.device("cpu"), limits, 1, "float32")
        watching = WatchSettings((), uri, tmp_path / "models", poll_seconds)
        engine = RunningEngine.start(models, loader, limits, watching, variants, coordination)
        stops.append(engine.close)
        running, stop = start(engine.engine, {}, rollout=engine.rollout, **more)
        stops.append(stop)
        return running

    yield begin
    for stop in reversed(stops):
        stop()


@pytest.fixture
def strict_server(small_models):
    """A server of the sentiment model alone that takes little."""
    limits = Limits(max_body_bytes=2000, max_items=3, max_request_tokens=60, body_seconds=0.5)
    with serving({"sentiment": small_models["sentiment"]}, limits) as running:
        yield running


@pytest.fixture
def dead_address():
    """An address at which nobody listens."""
    with socket.socket() as bound:  # so that nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"

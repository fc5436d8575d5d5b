"""Servers of small models."""

import pytest
from running import start, write_models

from serving.engine import Engine
from serving.limits import Limits
from serving.models import close_models, load_models


@pytest.fixture(scope="session")
def small_models(tmp_path_factory):
    """Folders of small models by name."""
    return write_models(tmp_path_factory.mktemp("small_models"))


@pytest.fixture(scope="session")
def server(small_models):
    """All small models behind one server."""
    models = load_models(small_models)
    running, stop = start(Engine(models), small_models)
    yield running
    stop()
    close_models(list(models.values()))


@pytest.fixture
def start_server():
    """Starts servers, and stops them in the end."""
    stops = []

    def start_one(engine, folders, keys=None):
        running, stop = start(engine, folders, keys)
        stops.append(stop)
        return running

    yield start_one
    for stop in stops:
        stop()


@pytest.fixture
def strict_server(small_models):
    """A server of the sentiment model alone that takes little."""
    limits = Limits(max_body_bytes=2000, max_items=3, max_request_tokens=60, body_seconds=0.5)
    models = load_models({"sentiment": small_models["sentiment"]})
    running, stop = start(Engine(models, limits), small_models)
    yield running
    stop()
    close_models(list(models.values()))

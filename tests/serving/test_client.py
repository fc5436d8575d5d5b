"""The client as a whole: light to import, and its key stays its own."""

import logging
import subprocess
import sys
import traceback

import pytest
from scripted_server import CLOSE, scripted

from serving.client import Client, ClientError
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models

HEAVY = ("torch", "fastapi", "starlette", "ray", "mlflow", "transformers", "tokenizers", "uvicorn")


def test_importing_the_client_loads_nothing_heavy():
    script = "import sys; from serving.client import Client, AsyncClient; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "httpx2" in loaded and not loaded & set(HEAVY)


@pytest.fixture
def guarded(small_models, start_server, tmp_path):
    """The address of a server with keys, and a key."""
    path = tmp_path / "keys.json"
    key = add_key(path, "user", ["predict"], None)
    models = load_models({"entities": small_models["entities"]})
    running = start_server(Engine(models), small_models, keys=read_keys(path))
    yield f"http://{running.host}:{running.port}", key
    close_models(list(models.values()))


def test_who_has_a_key_is_answered(guarded):
    address, key = guarded
    with Client(address, api_key=key) as client:
        assert len(client.ner(["a cat", "dogs"])) == 2
        assert list(client.info().models) == ["entities"]
        assert client.ready()


def everything_said(address, key, ask):
    """What can be seen of a client and of the error that it ends with, local variables too."""
    with Client(address, api_key=key, retry_seconds=0.2) as client:
        with pytest.raises(ClientError) as told:
            ask(client)
        seen = traceback.TracebackException.from_exception(told.value, capture_locals=True)
        said = [repr(client), str(client), repr(told.value), repr(vars(told.value))]
        said += map(str, vars(client).values())
        # The test's own frames have the key in their hands.
        frames = [each for each in seen.stack if "serving/client" in each.filename]
        assert frames
        return "\n".join([*said, *(str(each.locals) for each in frames)])


def test_the_key_is_never_shown(guarded, caplog, dead_address):
    caplog.set_level(logging.DEBUG)
    address, _ = guarded
    secret = "bertline-verysecret"
    with scripted(*[CLOSE] * 100) as server:
        said = everything_said(address, secret, lambda client: client.ner("a"))
        said += everything_said(address, secret, lambda client: client.ner(["a", "b"]))
        said += everything_said(server.address, secret, lambda client: client.ner("a"))
        said += everything_said(dead_address, secret, lambda client: client.ner("a"))
        assert server.headers[0]["Authorization"] == f"Bearer {secret}"
    assert "Unknown key" in said and caplog.text
    assert "verysecret" not in said + caplog.text

"""The clients as a whole: settings, keys, concurrency, threads, forks and closing."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted_server import CLOSE, SILENCE, scripted

import serving.client
from bert_core.errors import UserError
from serving.client import AsyncClient, Client, ClientError, RefusalError
from serving.client.asynchronous import ClientSettings
from serving.keys import add_key, read_keys

PRODUCT = str(Path(serving.client.__file__).parent)
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
    server = start_server({"entities": small_models["entities"]}, keys=read_keys(path))
    return server.address, key


def test_a_key_is_sent(guarded):
    address, key = guarded
    with Client(address, api_key=key) as client:
        assert len(client.ner(["a cat", "dogs"])) == 2
        assert list(client.info().models) == ["entities"]
        assert client.ready()


def everything_shown(address, key, ask):
    """What can be seen of a client and of the error that it ends with, local variables too."""
    with Client(address, api_key=key, retry_seconds=0.2) as client:
        with pytest.raises(ClientError) as told:
            ask(client)
        seen = traceback.TracebackException.from_exception(told.value, capture_locals=True)
        said = [repr(client), str(client), repr(told.value), repr(vars(told.value))]
        said += map(str, vars(client).values())
        # The test's own frames have the key in their hands.
        frames = [each for each in seen.stack if each.filename.startswith(PRODUCT)]
        assert frames
        return "\n".join([*said, *(str(frame.locals) for frame in frames)])


def test_the_key_is_never_shown(guarded, caplog, dead_address):
    caplog.set_level(logging.DEBUG)
    address, _ = guarded
    secret = "bertline-verysecret"
    with scripted(*[CLOSE] * 100) as server:
        said = everything_shown(address, secret, lambda client: client.ner("a"))
        said += everything_shown(address, secret, lambda client: client.ner(["a", "b"]))
        said += everything_shown(server.address, secret, lambda client: client.ner("a"))
        said += everything_shown(dead_address, secret, lambda client: client.ner("a"))
        assert server.headers[0]["Authorization"] == f"Bearer {secret}"
    assert "Unknown key" in said and caplog.text
    assert "verysecret" not in said + caplog.text


def test_settings_that_cannot_be_are_refused():
    for address in (
        *("", "127.0.0.1:8000", "localhost:8000", "ftp://a", "http://", "http://a?b"),
        "http://a:99999",
    ):
        with pytest.raises(UserError, match="invalid server address: .*http://HOST:PORT"):
            ClientSettings(address)
    for key in ("", "a b", "sécret", "secret\n"):
        with pytest.raises(UserError) as told:
            ClientSettings("http://a", key)
        assert "cret" not in str(told.value)
    for name, number in (("timeout_seconds", 0), ("retry_seconds", -1), ("concurrency", 0)):
        with pytest.raises(UserError, match=name):
            ClientSettings("http://a", **{name: number})


def test_settings_show_no_secret():
    settings = ClientSettings("https://me:p@ss@example.org/bert/")
    assert settings.shown_address == "https://example.org/bert"
    assert "p@ss" not in repr(settings) and "ss" not in settings.shown_address.partition("//")[2]
    assert "secret" not in repr(ClientSettings("http://a", "secret"))
    with pytest.raises(UserError, match="two credentials"):
        ClientSettings("http://me:word@a", "secret")


def test_tasks_share_a_client():
    async def ask(address):
        async with AsyncClient(address) as client:
            texts = [str(number) for number in range(20)]
            found = await asyncio.gather(*map(client.classify, texts))
            assert [each.label for each in found] == texts

    with scripted(503, 429, 503, delay=lambda _: 0.1) as server:
        asyncio.run(ask(server.address))
        assert server.most_at_once > 5


def test_cancelling_a_task_cancels_its_requests():
    async def ask(address):
        async with AsyncClient(address, concurrency=2) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.classify(["a"] * 10)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with scripted(SILENCE, *[503] * 1000, limits={"max_items": 1}) as server:
        asyncio.run(ask(server.address))


def test_the_first_error_cancels_the_other_tasks():
    async def ask(address):
        async with AsyncClient(address, concurrency=4) as client:
            with pytest.raises(RefusalError):
                await client.classify(["a"] * 20)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with scripted(422, *[503] * 1000, limits={"max_items": 1}) as server:
        asyncio.run(ask(server.address))


def test_threads_may_share_a_client():
    lists = [[f"{number}-{place}" for place in range(10)] for number in range(8)]
    with (
        scripted(503, 503, limits={"max_items": 3}) as server,
        Client(server.address) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(client.classify, lists))
    assert [[each.label for each in some] for some in found] == lists


def test_the_first_error_cancels_the_other_requests():
    with (
        scripted(422, *[503] * 1000, limits={"max_items": 1}) as server,
        Client(server.address, concurrency=4) as client,
    ):
        with pytest.raises(RefusalError):
            client.classify(["a"] * 20)
        time.sleep(0.2)
        asked = len(server.asked)
        time.sleep(0.5)
        assert len(server.asked) == asked
    assert not background_threads()


def test_a_path_in_the_address_is_kept():
    with scripted() as server, Client(f"{server.address}/bert/") as client:
        assert client.classify("a").version == "7"
    assert server.paths == ["/bert/v1/classify"]


def background_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("client of")]


def test_closing_ends_requests_and_the_thread():
    with scripted(SILENCE) as server, ThreadPoolExecutor(1) as pool:
        client = Client(server.address)
        asking = pool.submit(client.classify, "a")
        while not server.asked:
            time.sleep(0.01)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            asking.result(timeout=10)
        assert not background_threads()
        with pytest.raises(RuntimeError, match="closed"):
            client.classify("a")
        client.close()


def test_a_client_that_nobody_closes_ends_with_its_last_reference():
    with scripted() as server:
        client = Client(server.address)
        client.classify("a")
        (thread,) = background_threads()
        del client
        gc.collect()
        thread.join(10)
        assert not thread.is_alive()


def test_an_interrupted_caller_cancels_its_request(request):
    """Ctrl-C raises in the thread that waits; nothing is retried after it."""
    # What a shell starts in the background does not hear Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with scripted(*[503] * 1000) as server, Client(server.address) as client:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            client.classify("a")
        time.sleep(0.1)
        num_asked = len(server.asked)
        time.sleep(0.5)
        assert len(server.asked) == num_asked


def test_a_forked_process_has_its_own_connections():
    with scripted() as server, Client(server.address) as client:
        assert client.classify("before").label == "before"
        child = multiprocessing.get_context("fork").Process(
            target=lambda: sys.exit(client.classify("in the child").label != "in the child")
        )
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert client.classify("after").label == "after"
        assert len(background_threads()) == 1

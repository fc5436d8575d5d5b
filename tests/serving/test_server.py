"""The server as a process: its settings, its start, its end."""

import asyncio
import http.client
import json
import platform
import re
import runpy
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from forked_programs import ForkedProgram
from registered_versions import broken_weights, other_weights
from running import ask_at, started

from bert_core.errors import UserError
from serving.app import RunningEngine, loader_for
from serving.limits import Limits
from serving.rollout.aliases import Address, VariantSource
from serving.rollout.watcher import WatchSettings
from serving.server import uvicorn_config
from serving.settings import parse_arguments


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_models_are_served_until_the_server_is_told_to_stop(
    small_models, subprocess_environment, how
):
    command = ["serving", "--port", "0", "--threads", "1"]
    command += [f"--model={small_models[name]}" for name in ("entities", "answers")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = ForkedProgram(command, env=subprocess_environment, **pipes)
    try:
        lines = [server.stdout.readline() for _ in range(3)]
        assert lines[0].startswith("entities: ner, ") and lines[1].startswith("answers: squad, ")
        address, port = re.match(r"ready at (http://127\.0\.0\.1:(\d+)), ", lines[2]).groups()
        assert f"try it at {address}/, the API's page is {address}/docs" in lines[2]
        _, answer, _ = ask_at("127.0.0.1", int(port), "/v1/ner", {"inputs": "the cat sat"})
        assert answer["model"] == "entities"
    finally:
        server.send_signal(how)
        _, errors = server.communicate(timeout=30)
    assert server.returncode in (0, -how)
    (line,) = errors.splitlines()
    assert json.loads(line)["path"] == "/v1/ner" and "cat" not in line


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ([], ("http", "127.0.0.1")),
        (["--forwarded_allow_ips", "10.0.0.0/8"], ("http", "127.0.0.1")),
        (["--forwarded_allow_ips", "127.0.0.1"], ("https", "192.0.2.7")),
    ],
)
def test_only_named_proxies_say_who_asks_and_how(monkeypatch, options, seen):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own
    scopes = []

    async def application(scope, receive, send):
        scopes.append(scope)

    config = uvicorn_config(application, parse_arguments(["--model", "a", *options]))
    assert config.timeout_keep_alive > 60, "longer than load balancers keep a connection"
    config.load()
    headers = [(b"x-forwarded-proto", b"https"), (b"x-forwarded-for", b"192.0.2.7")]
    scope = {"type": "http", "client": ("127.0.0.1", 1), "scheme": "http", "headers": headers}
    asyncio.run(config.loaded_app(scope, None, None))
    assert (scopes[0]["scheme"], scopes[0]["client"][0]) == seen


def test_what_cannot_be_served_is_one_line(small_models, server, tmp_path, capsys, monkeypatch):
    taken = ["--model", str(small_models["entities"]), "--port", str(server.port)]
    for given, said in ((["--model", str(tmp_path)], ""), (taken, "cannot listen")):
        monkeypatch.setattr(sys, "argv", ["serving", *given])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_module("serving", run_name="__main__")
        captured = capsys.readouterr()
        assert captured.err.startswith(f"error: {said}") and captured.err.count("\n") == 1
        assert not captured.out


def test_models_of_mlflow_are_served_without_mlflow(
    copied_registry, small_models, subprocess_environment
):
    environment = subprocess_environment | {"MLFLOW_TRACKING_URI": copied_registry.uri}
    given = ["--model", "models:/people@champion", "--model", "old=models:/mood/1"]
    given += ["--model", str(small_models["answers"])]
    # The interpreter names every module that this process, and no child of it, imports.
    with started(given, environment, python=("-X", "importtime")) as server:
        info = server.ask("/info")[1]["models"]
        found = server.ask("/v1/ner", {"inputs": "the cat sat"})[1]
    is_import = "import time:"
    modules = {line.rpartition("|")[2].strip() for line in server.said if is_import in line}
    said = [line for line in server.said if is_import not in line]
    assert {"serving.rollout.aliases", "torch", "fastapi"} <= modules
    assert not {module for module in modules if module.split(".")[0] in ("mlflow", "sqlalchemy")}
    assert not modules & {"serving.registry", "serving.watch"}
    # FastAPI has its interface; without tracing nothing makes spans or sends them.
    unwanted = ("opentelemetry.sdk", "opentelemetry.exporter")
    assert not {name for name in modules if name.startswith(unwanted)}
    assert not said and found["model"] == "people"
    assert server.lines[0] == "asking MLflow for models:/people@champion, models:/mood/1"
    cache = Path(environment["HOME"]) / ".bertline" / "models"
    assert server.lines[1].startswith(f"people: ner, version 1, {cache}/")
    assert info["people"]["registered"] == {"name": "people", "version": 1, "alias": "champion"}
    assert info["old"]["registered"] == {"name": "mood", "version": 1, "alias": None}
    assert info["answers"]["registered"] is None and info["answers"]["lineage"] is None
    lineage = info["people"]["lineage"]
    assert (lineage["run_id"], lineage["data_sha256"]) == (copied_registry.run_id, "ab" * 32)
    assert lineage["metrics"] == {"dev/f1": 0.75}
    assert info["people"].pop("registry")["fault"] is None
    assert info["old"].pop("registry")["fault"] is None and info["answers"]["registry"] is None

    copied_registry.database.unlink()
    with started(given, environment) as server:
        again = server.ask("/info")[1]["models"]
    said = server.said
    for name in ("people", "old"):
        assert "no MLflow store" in again[name].pop("registry")["fault"]
    assert again == info
    assert len(said) == 2 and all(each.startswith("warning: models:/") for each in said)
    assert "people@champion is version 1, as fetched before: no model" in "".join(said)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = ["serving", "--port", "0", "--model", "models:/mood@champion"]
    ended = ForkedProgram(command, env=environment, **pipes)
    _, errors = ended.communicate(timeout=60)
    assert ended.returncode == 2, "this one was not fetched before"
    assert errors.startswith("error: no model models:/mood@champion: no MLflow store")
    assert errors.count("\n") == 1


def test_options_are_read():
    given = ["--model", "models:/cats@champion", "--model", "ner=c/d", "--port", "0"]
    given += ["--tracking_uri", "http://mlflow:5000", "--cache", "here", "--cache_gib", "0.5"]
    given += ["--allowed_hosts", "A.example", "--allowed_hosts", "::2", "--limits.max_items", "7"]
    given += ["--forwarded_allow_ips", "10.0.0.0/8", "--forwarded_allow_ips", "::1"]
    origins = ["https://a.example", "http://localhost:3000"]
    given += [word for origin in origins for word in ("--cors_origins", origin)]
    settings = parse_arguments(given)
    assert settings.models == {"cats": Address("cats", "champion", None), "ner": Path("c/d")}
    assert (settings.tracking_uri, settings.cache) == ("http://mlflow:5000", Path("here"))
    assert settings.cache_gib == 0.5
    assert settings.allowed_hosts == ["a.example", "::2"]
    assert settings.forwarded_allow_ips == ["10.0.0.0/8", "::1/128"]
    assert settings.cors_origins == origins
    assert settings.limits.max_items == 7 and settings.limits.max_body_bytes == 2 << 20
    assert parse_arguments(["--model", "a"]).cors_origins == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "a.example"])
def test_listening_to_the_world_has_to_be_meant(host):
    with pytest.raises(UserError, match="without keys"):
        parse_arguments(["--model", "a", "--host", host])
    assert parse_arguments(["--model", "a", "--host", host, "--insecure"]).host == host
    guarded = ["--model", "a", "--host", host, "--api_key_file", "keys.json"]
    assert parse_arguments(guarded).host == host
    for own in ("127.0.0.1", "::1", "localhost", "127.0.0.5"):
        assert parse_arguments(["--model", "a", "--host", own]).host == own


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("port", "70000"),
        ("limits.max_items", "x"),
        ("allowed_hosts", "a:80"),
        ("forwarded_allow_ips", "proxy.example"),
        ("cors_origins", "*"),
        ("model", None),
    ],
)
def test_what_is_wrong_is_one_line_with_its_option(option, value):
    with pytest.raises(UserError, match=f"--{option}") as told:
        parse_arguments(["--model", "a", f"--{option}", value] if value else [])
    assert "\n" not in str(told.value) and "see --help" in str(told.value)


def test_the_environment_says_nothing(monkeypatch):
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("INSECURE", "true")
    settings = parse_arguments(["--model", "a"])
    assert settings.port == 8000 and not settings.insecure


def test_a_model_and_its_canary_are_taken_whole():
    path = '/a, b/"c"=[d]\\/ü'
    given = ["--model", path, "--model=e", "--canary", f"e={path},0.25", "--shadow=e=f,1"]
    settings = parse_arguments(given)
    assert settings.model == [path, "e"]
    assert list(settings.models.values()) == [Path(path), Path("e")]
    assert settings.variants["canary", "e"] == VariantSource(Path(path), 0.25)
    assert settings.variants["shadow", "e"] == VariantSource(Path("f"), 1.0)


def test_a_shadow_of_another_task_is_refused_at_the_start(start_rollout, small_models):
    topics = {("shadow", "mood"): VariantSource(small_models["topics"], 1.0)}
    with pytest.raises(UserError, match="another task or other labels than mood"):
        start_rollout({"mood": small_models["sentiment"]}, topics)


def test_what_was_opened_before_a_model_that_is_damaged_is_closed(small_models, tmp_path):
    """A thread that computes when a process ends takes the process down with it."""

    def encoders():
        return [thread for thread in threading.enumerate() if thread.name.startswith("encoder-")]

    before = encoders()
    damaged = broken_weights(small_models["topics"], tmp_path / "damaged")
    models = {"mood": small_models["sentiment"], "topics": damaged}
    limits = Limits()
    loader = loader_for(torch.device("cpu"), limits, 2, "float32")
    with pytest.raises(UserError, match="damaged"):
        RunningEngine.start(models, loader, limits, WatchSettings())
    assert encoders() == before


@pytest.mark.slow
def test_a_canary_of_a_tenth_gets_a_tenth_of_5000_requests(start_rollout, small_models, tmp_path):
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    canary = {("canary", "mood"): VariantSource(better, 0.1)}
    server = start_rollout({"mood": small_models["sentiment"]}, canary)
    connection = http.client.HTTPConnection(server.host, server.port)
    body = json.dumps({"inputs": "a cat"})
    versions = Counter()
    for _ in range(5000):
        connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
        versions[json.loads(connection.getresponse().read())["version"]] += 1
    canary = server.engine.traffic.variant("mood", "canary").model
    print(f"the canary of a tenth answered {versions[canary.version]} of 5,000 requests")
    assert len(versions) == 2 and 400 <= versions[canary.version] <= 600


STATES_OF_LONG_TEXTS = """
import ctypes, sys
import psutil, torch
from serving.app import start_application
from serving.settings import parse_arguments

settings = parse_arguments(["--model", sys.argv[1]])
_, running = start_application(settings, torch.device("cpu"), 1, None)
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
library.free(library.malloc(30 << 20))  # glibc would now take so much from its heap, too
before = psutil.Process().memory_info().rss
states = []
for _ in range(8):
    states.append(library.malloc(24 << 20))
    library.malloc(4 << 20)  # stays behind it
for each in states:
    ctypes.memset(each, 1, 24 << 20)
    library.free(each)
print(psutil.Process().memory_info().rss - before)
running.close()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is of glibc")
def test_an_application_gives_large_tensors_back_wherever_it_runs(small_models):
    """A replica of Ray Serve has no `serve`, and starts the application itself."""
    command = [sys.executable, "-c", STATES_OF_LONG_TEXTS, str(small_models["entities"])]
    kept = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert int(kept) < 20 << 20  # of 200 MB

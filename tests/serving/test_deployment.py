"""The application under Ray Serve, as `serve run` starts it, behind HAProxy."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml
from asking import ask_at, assert_alike

from bert_core.errors import UserError
from serving.deployment import INGRESS_VARIABLES, DeploymentArguments, Server, build

REPOSITORY = Path(__file__).parents[2]


def test_everybody_is_let_in_only_if_that_is_said(small_models):
    folder = str(small_models["entities"])
    with pytest.raises(UserError, match="no keys are asked for"):
        build(DeploymentArguments(model=folder))
    assert build(DeploymentArguments(model=folder, insecure=True))
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(model="here", insecure=True))
    registered = {"model": "models:/people@champion", "insecure": True}
    assert build(DeploymentArguments(**registered))
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(**registered, cache=Path("models")))
    with pytest.raises(UserError, match="write models:/name@alias"):
        build(DeploymentArguments(model="models:/people", insecure=True))


def test_several_models_are_divided_by_commas():
    assert DeploymentArguments(model="a=/b,/c").model == ("a=/b", "/c")
    assert DeploymentArguments(model=["a=/b", "/c"]).model == ("a=/b", "/c")


def test_the_files_beside_it_are_of_this_deployment():
    config = yaml.safe_load((REPOSITORY / "infra" / "serve.yaml").read_text())
    (application,) = config["applications"]
    assert application["import_path"] == "serving.deployment:build"
    DeploymentArguments.model_validate(application["args"])
    (deployment,) = application["deployments"]
    assert deployment["name"] == Server.name
    lines = (REPOSITORY / "infra" / "ray-serve.env").read_text().splitlines()
    variables = dict(line.split("=") for line in lines if line and not line.startswith("#"))
    assert INGRESS_VARIABLES.items() <= variables.items()


@pytest.mark.slow
def test_it_answers_as_under_uvicorn(
    server, small_models, registry, subprocess_environment, tmp_path
):
    models = small_models | {"entities": "models:/people@champion"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "http_options": {"host": "0.0.0.0", "port": port},
        "applications": [
            {
                "name": "bertline",
                "route_prefix": "/",
                "import_path": "serving.deployment:build",
                "args": {
                    "model": [f"{name}={model}" for name, model in models.items()],
                    "tracking_uri": registry.uri,
                    "cache": str(tmp_path / "models"),
                    "cors_origins": "https://a.example",
                    "insecure": True,
                },
            }
        ],
    }
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [str(Path(sys.executable).with_name("serve")), "run", str(path)]
    environment = subprocess_environment | INGRESS_VARIABLES | {"PYTHONPATH": str(REPOSITORY)}
    log = tmp_path / "log"
    with log.open("w") as file:
        running = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            env=environment,
            cwd=tmp_path,
            process_group=0,
            # What a shell starts in the background would not hear Ctrl-C.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        deadline = time.monotonic() + 200
        while True:
            assert running.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                if ask_at("127.0.0.1", port, "/ready")[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(1)
        for route, body in (
            ("/v1/ner", {"inputs": ["the cat sat", ""]}),
            ("/v1/classify", {"model": "sentiment", "inputs": "a cat"}),
            ("/embed", {"inputs": "a cat"}),
            ("/v1/ner", {"inputs": 3}),
            ("/v1/nothing", {}),
        ):
            status, content, headers = ask_at("127.0.0.1", port, route, body)
            wanted = server.ask(route, body)
            assert status == wanted[0]
            assert_alike(content, wanted[1])  # a replica has threads of its own number
            assert headers["X-Request-Id"]
        _, info = ask_at("127.0.0.1", port, "/info")[:2]
        assert info["models"]["entities"]["registered"]["version"] == 1
        below = psutil.Process(running.pid).children(recursive=True)
        assert any(each.name() == "haproxy" for each in below)
    finally:
        os.killpg(running.pid, signal.SIGINT)
        running.wait(60)

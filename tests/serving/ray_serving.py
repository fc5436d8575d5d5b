"""The application under Ray Serve, as `serve run` starts it, behind HAProxy."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import yaml
from running import ask_at

from serving.deployment import INGRESS_VARIABLES

REPOSITORY = Path(__file__).parents[2]
HOST = "127.0.0.1"
_TOOLS = Path(sys.executable).parent


@dataclass(frozen=True)
class RayServing:
    """Applications that run: where, the process that was started for them, its folder."""

    port: int
    process: psutil.Process
    folder: Path
    environment: dict[str, str]

    def ask(self, path, body=None, *, headers=None):
        """Status, answer and headers."""
        return ask_at(HOST, self.port, path, body, headers=headers)

    def replicas(self):
        """The processes of all replicas."""
        below = self.process.children(recursive=True)
        return [each for each in below if each.name().startswith("ray::ServeRepli")]

    def deploy(self, config):
        """As `serve deploy`, on the cluster that runs."""
        path = _written(self.folder, config)
        command = [str(_TOOLS / "serve"), "deploy", str(path), "--address", self._dashboard]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def states(self, application):
        """What Ray Serve says of each replica of an application: its name -> its state."""
        address = f"{self._dashboard}/api/serve/applications/"
        key = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        with urllib.request.urlopen(urllib.request.Request(address, headers=key)) as response:
            deployments = json.load(response)["applications"][application]["deployments"]
        return {  # while the application is built anew it has no deployment
            replica["actor_name"]: replica["state"]
            for deployment in deployments.values()
            for replica in deployment["replicas"]
        }

    def run_in_replica(self, name, script):
        """Runs lines of Python in the process of a replica, by Ray."""
        asked = (
            "import ray, sys\n"
            "ray.init(sys.argv[1], namespace='serve', log_to_driver=False)\n"
            "replica = ray.get_actor(sys.argv[2])\n"
            "ray.get(replica.__ray_call__.remote(lambda _, lines: exec(lines, {}), sys.argv[3]))\n"
        )
        command = [sys.executable, "-c", asked, self._cluster, name, script]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    @property
    def _dashboard(self):
        return re.search(r"http://[\d.]+:\d+(?= )", (self.folder / "log").read_text()).group()

    @property
    def _cluster(self):
        raylet = next(
            child for child in self.process.children(recursive=True) if child.name() == "raylet"
        )
        given = next(each for each in raylet.cmdline() if each.startswith("--gcs-address="))
        return given.partition("=")[2]


@contextmanager
def serving_on_ray(arguments, environment, folder, **deployment):
    """Starts a Ray of its own that serves; `deployment` is what serve.yaml may say of it."""
    application = {
        "name": "bertline",
        "route_prefix": "/",
        "import_path": "serving.deployment:build",
        "args": arguments,
    }
    if deployment:
        application["deployments"] = [{"name": "Server", **deployment}]
    config = {"http_options": {"host": "0.0.0.0"}, "applications": [application]}
    with deployed_on_ray(config, environment, folder) as serving:
        yield serving


@contextmanager
def deployed_on_ray(config, environment, folder):
    """Starts a Ray of its own that serves what a file like serve.yaml says, at a free port."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        config["http_options"]["port"] = free.getsockname()[1]
    environment = environment | INGRESS_VARIABLES | {"PYTHONPATH": str(REPOSITORY)}
    log = folder / "log"
    with log.open("w") as file:
        running = subprocess.Popen(
            [str(_TOOLS / "serve"), "run", str(_written(folder, config))],
            stdout=file,
            stderr=file,
            env=environment,
            cwd=folder,
            process_group=0,
            # What a shell starts in the background would not hear Ctrl-C.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    process = psutil.Process(running.pid)
    serving = RayServing(config["http_options"]["port"], process, folder, environment)
    prefixes = [application["route_prefix"].rstrip("/") for application in config["applications"]]
    try:
        deadline = time.monotonic() + 200
        while not all(_is_ready(serving, prefixe) for prefixe in prefixes):
            assert running.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(1)
        yield serving
    finally:
        os.killpg(running.pid, signal.SIGINT)
        running.wait(60)


def _written(folder, config):
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _is_ready(serving, prefix):
    try:
        return serving.ask(f"{prefix}/ready")[0] == 200
    except OSError:
        return False

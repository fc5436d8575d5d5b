"""What pods run when they end, and what MLflow's pod runs: the real texts, against stand-ins."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow.cli
import pytest
from manifests import environment_of, of_kind, pods
from ray._private import services
from ray.scripts import scripts

RAYLET = b"raylet\0--raylet_socket_name=/tmp/x\0--node_id=abc123\0--head\0"


def script(name):
    return of_kind("ConfigMap")["ray-node"]["data"][name]


@pytest.fixture
def processes(tmp_path):
    """Processes as /proc shows them: something else, a raylet, its agent."""
    folder = tmp_path / "proc"
    for number, words in ((7, b"bash\0"), (9, RAYLET), (11, b"agent\0--node-id=abc123\0")):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "cmdline").write_bytes(words)
    return folder


def leave(processes, ray, **variables):
    """Runs leave.sh where `ray` is a script of the test's own."""
    command = processes.parent / "ray"
    command.write_text(f"#!/usr/bin/env bash\n{ray}\n")
    command.chmod(0o755)
    return subprocess.run(
        ["bash", "-c", script("leave.sh").replace("/proc/", f"{processes}/")],
        env={"PATH": f"{processes.parent}:{os.environ['PATH']}"} | variables,
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_a_worker_tells_ray_and_waits_for_its_end(processes):
    said = processes.parent / "said"
    later = f"( sleep 1; echo gone >>{said}; rm -r {processes}/9 ) >/dev/null 2>&1 &"
    done = leave(processes, f'printf "%s\\n" "$@" >{said}\n{later}', NOTICE_SECONDS="90")
    assert (done.returncode, done.stderr) == (0, "")
    *words, last = said.read_text().splitlines()
    assert last == "gone"
    assert words[0] == "drain-node"
    options = scripts.drain_node.make_context("drain-node", words[1:]).params
    assert options["node_id"] == "abc123"
    assert options["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert options["deadline_remaining_seconds"] == 90


def test_a_worker_whose_cluster_is_gone_does_not_wait(processes):
    assert leave(processes, "exit 3").returncode == 3
    shutil.rmtree(processes / "9")
    assert leave(processes, "exit 3").returncode == 0


def test_ray_starts_raylets_with_the_word_that_is_looked_for():
    assert 'f"--node_id=' in Path(services.__file__).read_text(encoding="utf-8")


def test_bash_and_shellcheck_find_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed here")
    done = subprocess.run(
        ["shellcheck", "-"], input=script("leave.sh"), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


STAND_IN = """
from types import SimpleNamespace


class Status(str):
    def is_terminal(self):
        return self != "RUNNING"


class JobSubmissionClient:
    def __init__(self, address):
        assert address == "http://127.0.0.1:8265"
        self.polled = 0

    def list_jobs(self):
        jobs = [("done", "SUCCEEDED"), ("busy", "RUNNING"), (None, "RUNNING"), ("late", "RUNNING")]
        more = {"entrypoint": "python x.py"}
        return [
            SimpleNamespace(submission_id=name, status=Status(each), **more) for name, each in jobs
        ]

    def stop_job(self, name):
        print("stop", name)

    def get_job_status(self, name):
        self.polled += 1
        print("asked", name)
        return Status("RUNNING" if self.polled < 2 else "STOPPED")
"""


def test_the_head_stops_all_its_jobs_and_waits_for_them(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "ray" / "job_submission.py").write_text(STAND_IN)
    (tmp_path / "stop.py").write_text(script("stop.py"))
    done = subprocess.run(
        [sys.executable, tmp_path / "stop.py"],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (0, "")
    stopped = ["stopping  python x.py", "stop busy", "stopping  python x.py", "stop late"]
    assert done.stdout.splitlines() == [*stopped, "asked busy", "asked busy", "asked late"]


def test_each_pod_has_the_script_that_it_calls():
    called = 0
    for pod in pods():
        for container in pod.containers:
            hook = container.get("lifecycle", {}).get("preStop")
            if hook is None:
                continue
            path = Path(hook["exec"]["command"][-1])
            (mount,) = [
                each["name"]
                for each in container["volumeMounts"]
                if each["mountPath"] == str(path.parent)
            ]
            (volume,) = [each for each in pod.spec["volumes"] if each["name"] == mount]
            assert volume["configMap"] == {"name": "ray-node", "defaultMode": 0o555}
            assert path.name in of_kind("ConfigMap")["ray-node"]["data"]
            called += 1
    assert called == 7


def test_mlflow_knows_what_it_is_told():
    (container,) = of_kind("Deployment")["mlflow"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["mlflow", "server"]
    words = [
        word.replace("$(BERTLINE_STORAGE)", environment_of(container)["BERTLINE_STORAGE"])
        for word in container["args"]
    ]
    options = mlflow.cli.server.make_context("server", words).params
    assert options["artifacts_destination"] == "s3://bertline/mlflow"
    assert options["backend_store_uri"] == "postgresql+psycopg2://mlflow@postgres:5432/mlflow"
    assert options["port"] == container["ports"][0]["containerPort"]
    # Its clients' Host header, which it refuses if it does not know it.
    address = environment_of(container)["MLFLOW_TRACKING_URI"].removeprefix("http://")
    assert address in options["allowed_hosts"].split(",")

"""Node pools and the scripts on nodes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow.cli
import pytest
from manifests import amount, cluster_of, environment_of, groups_of, of_kind, pods
from ray._private import services
from ray.autoscaler._private.kuberay.utils import (
    gke_tpu_accelerator_to_generation,
    tpu_node_selectors_to_type,
)
from ray.scripts import scripts
from yaml_files import INFRA

PAGES = {name: INFRA.parent / name for name in ("infra/README.md", "docs/tpu.md")}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
SPOT = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true"}
SPOT |= {"effect": "NoSchedule"}

# As Google's tables of machine types have them.
TPU_MACHINES = {"ct6e-standard-4t": ("tpu-v6e-slice", 4, 180, 720)}
GPU_MACHINES = {"g2-standard-48": ("nvidia-l4", 4, 48, 192)}


def commands(page, *words):
    """The commands of a page that begin with these words, as their options."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", TEXTS[page], re.MULTILINE | re.DOTALL)
    shell = "".join(text for kind, text in fences if kind == "")
    lines = shell.replace("\\\n", " ").splitlines()
    for line in lines:
        found = shlex.split(line, comments=True) if line.startswith("gcloud ") else []
        if found[: len(words)] == [*words]:
            yield options(found[len(words) :])


def options(words):
    """`--name value` and `--name=value` alike; the word before them is the name."""
    found = {"name": words[0]}
    for word, following in zip(words[1:], [*words[2:], "--"], strict=True):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            found[name] = value if equals else following * (not following.startswith("--"))
    return found


def pools(page):
    return list(commands(page, "gcloud", "container", "node-pools", "create"))


def tpu_group():
    return groups_of(of_kind("RayJob")["pretrain-tpu"])["v6e-4x4"]


@pytest.mark.parametrize("page", PAGES)
def test_the_pool_of_tpus_is_the_slice_of_the_manifest(page):
    (pool,) = [each for each in pools(page) if "tpu-topology" in each]
    accelerator, chips, processors, gigabytes = TPU_MACHINES[pool["machine-type"]]
    group = tpu_group()
    spec = group["template"]["spec"]
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": pool["tpu-topology"],
    }
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits["google.com/tpu"] == chips
    assert int(limits["cpu"]) < processors
    assert amount(limits["memory"]) < gigabytes * 1e9
    hosts = group["replicas"] * group["numOfHosts"]
    assert int(pool["num-nodes"]) == hosts == group["maxReplicas"] * group["numOfHosts"]
    columns, rows = map(int, pool["tpu-topology"].split("x"))
    assert columns * rows == hosts * chips
    # The profile that the job trains with, and the pool's own name, are Ray's for this slice.
    slice_type = tpu_node_selectors_to_type(pool["tpu-topology"], accelerator)
    assert slice_type == pool["name"] == "v6e-16"
    entrypoint = of_kind("RayJob")["pretrain-tpu"]["spec"]["entrypoint"]
    assert f"--profile tpu-{slice_type} " in entrypoint
    assert "spot" in pool
    assert SPOT in spec["tolerations"]


@pytest.mark.parametrize("page", PAGES)
def test_the_pool_of_tpus_is_deleted_on_the_page_that_creates_it(page):
    (pool,) = [each for each in pools(page) if "tpu-topology" in each]
    (deleted,) = commands(page, "gcloud", "container", "node-pools", "delete")
    assert deleted == {key: pool[key] for key in ("name", "cluster", "zone")}


def test_the_pool_of_gpus_has_what_a_worker_asks_for():
    (pool,) = [each for each in pools("infra/README.md") if "accelerator" in each]
    kind, gpus, processors, gigabytes = GPU_MACHINES[pool["machine-type"]]
    accelerator = dict(each.split("=") for each in pool["accelerator"].split(","))
    assert (accelerator["type"], int(accelerator["count"])) == (kind, gpus)
    # Without a word about it GKE installs no driver.
    assert accelerator["gpu-driver-version"] in ("default", "latest")
    for manifest in (of_kind("RayCluster")["training"], of_kind("RayJob")["pretrain-gpu"]):
        group = groups_of(manifest)["gpu"]
        spec = group["template"]["spec"]
        limits = spec["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == gpus
        assert int(limits["cpu"]) < processors
        assert amount(limits["memory"]) < gigabytes * 1e9
        assert int(pool["max-nodes"]) >= group["maxReplicas"]
        assert SPOT in spec["tolerations"]
    assert "spot" in pool and "enable-autoscaling" in pool
    assert (pool["num-nodes"], pool["min-nodes"]) == ("0", "0")


def test_all_pools_lie_in_the_cluster_that_is_made_and_deleted():
    (cluster,) = commands("infra/README.md", "gcloud", "container", "clusters", "create")
    (deleted,) = commands("infra/README.md", "gcloud", "container", "clusters", "delete")
    assert deleted == {key: cluster[key] for key in ("name", "zone")}
    for page in PAGES:
        for pool in pools(page):
            assert (pool["cluster"], pool["zone"]) == (cluster["name"], cluster["zone"])
    # Network policies mean nothing without the one, claims get nothing without the other.
    assert "enable-dataplane-v2" in cluster
    assert "GcpFilestoreCsiDriver" in cluster["addons"]
    # Two operators would answer for the same objects.
    assert "RayOperator" not in cluster["addons"]


def test_heads_and_servers_fit_the_machines_that_are_always_there():
    (cluster,) = commands("infra/README.md", "gcloud", "container", "clusters", "create")
    assert cluster["machine-type"] == "n2-standard-8"
    # What GKE keeps of 8 processors and 32 GB, and its own pods take, leaves about this.
    processors, memory = 7, 26 * 2**30
    for manifest in of_kind("RayCluster", "RayJob", "RayService").values():
        spec = cluster_of(manifest)
        growing = spec.get("autoscalerOptions", {}).get("resources", {}).get("requests", {})
        (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
        wanted = head["resources"]["requests"]
        assert amount(wanted["cpu"]) + amount(growing.get("cpu", 0)) <= processors
        assert amount(wanted["memory"]) + amount(growing.get("memory", 0)) <= memory
    (server,) = groups_of(of_kind("RayService")["serving"])["cpu"]["template"]["spec"]["containers"]
    assert amount(server["resources"]["requests"]["cpu"]) <= processors
    (prepare,) = of_kind("Job")["prepare"]["spec"]["template"]["spec"]["containers"]
    assert amount(prepare["resources"]["requests"]["cpu"]) <= processors


def test_the_selectors_of_other_generations_are_those_that_ray_knows():
    named = set(re.findall(r"`(tpu-[\w-]*(?:slice|podslice))`", TEXTS["docs/tpu.md"]))
    assert len(named) >= 3
    assert named <= set(gke_tpu_accelerator_to_generation)
    for key, value in tpu_group()["template"]["spec"]["nodeSelector"].items():
        assert f"`{key}: {value}`" in TEXTS["docs/tpu.md"]


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

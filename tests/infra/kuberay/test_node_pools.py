"""The machines that infra/README.md and docs/tpu.md make are those that the manifests ask for."""

import re
import shlex

import pytest
from manifests import amount, cluster_of, groups_of, of_kind
from ray.autoscaler._private.kuberay.utils import (
    gke_tpu_accelerator_to_generation,
    tpu_node_selectors_to_type,
)
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

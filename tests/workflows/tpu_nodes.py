"""A Ray cluster whose nodes say that they are hosts of TPU slices; XLA computes on their CPUs."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

SLICE_LABEL = "ray.io/tpu-slice-name"
COMPILING = "Compiling jit("


@contextmanager
def tpu_cluster(num_slices: int = 1) -> Iterator[Cluster]:
    """Slices `v4 2x2x2`, each two nodes with four chips by name, beside a head without any.

    What GKE and TPU VMs tell Ray of a host is told to it here; JAX_PLATFORMS keeps JAX on the CPU,
    and JAX says each time what it compiles (`compiled_by_workers`).
    """
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for number in range(num_slices):
            for host in range(2):
                add_host(cluster, f"slice-{number}", host)
        yield cluster
    finally:
        cluster.shutdown()


def add_host(cluster: Cluster, slice_name: str, host: int) -> None:
    """Adds a host of a slice; the first, host 0, is the one by which the slice is reserved."""
    head = {"TPU-v4-16-head": 1} if host == 0 else {}
    cluster.add_node(
        num_cpus=1,
        resources={"TPU": 4, "accelerator_type:TPU-V4": 1, **head},
        labels={
            SLICE_LABEL: slice_name,
            "ray.io/tpu-worker-id": str(host),
            "ray.io/tpu-pod-type": "v4-16",
            "ray.io/tpu-topology": "2x2x2",
        },
        env_vars={
            "TPU_NAME": slice_name,
            "TPU_WORKER_ID": str(host),
            "JAX_PLATFORMS": "cpu",
            "JAX_LOG_COMPILES": "1",
        },
    )


def host_of(worker: psutil.Process) -> tuple[str, int]:
    """The slice of a worker and which of its hosts it runs on, by what its node has told it."""
    environment = worker.environ()
    return environment["TPU_NAME"], int(environment["TPU_WORKER_ID"])


def lose_host(cluster: Cluster, slice_name: str, host: int) -> None:
    """Kills the node of a host and all that runs there."""
    for node in list(cluster.worker_nodes):
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        if host_of(raylet) == (slice_name, host):
            below = raylet.children(recursive=True)
            for process in (raylet, *below):
                process.kill()
            psutil.wait_procs(below, timeout=60)
            cluster.remove_node(node, allow_graceful=False)
            return
    raise LookupError(f"no host {host} of {slice_name}")


def compiled_by_workers(cluster: Cluster) -> dict[str, Counter[str]]:
    """How often JAX has compiled each function, by its name, in each worker so far."""
    found = {}
    for path in Path(cluster.head_node.get_logs_dir_path()).glob("worker-*.err"):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.split("(")[1].split(")")[0] for line in lines if COMPILING in line]
        found[path.name] = Counter(names)
    return found

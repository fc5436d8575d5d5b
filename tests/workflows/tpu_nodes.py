"""A Ray cluster whose nodes say that they are hosts of TPU slices; XLA computes on their CPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.cluster_utils import Cluster

SLICE_LABEL = "ray.io/tpu-slice-name"


@contextmanager
def tpu_cluster(num_slices: int = 1) -> Iterator[Cluster]:
    """Slices `v4 2x2x2`, each two nodes with four chips by name, beside a head without any.

    What GKE and TPU VMs tell Ray of a host is told to it here; JAX_PLATFORMS keeps JAX on the CPU.
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
        env_vars={"TPU_NAME": slice_name, "TPU_WORKER_ID": str(host), "JAX_PLATFORMS": "cpu"},
    )

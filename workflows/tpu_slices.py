"""TPU slices: which shapes a generation has, and the hosts and chips of each, by Ray's own tables.

A slice is a block of chips with a network of their own. It is had whole, and each of its hosts is
one Ray node and holds one worker.
"""

from dataclasses import dataclass
from math import prod

from bert_core.errors import nearest

GENERATIONS = {"v4": "v4", "v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e", "v7x": "v7x"}
"""Generations of TPU as they are spoken of, and as Ray and Google Cloud write them."""

_NAMED_TOPOLOGIES = 9


@dataclass(frozen=True)
class TpuSlice:
    """One shape of slices; `topology` is in chips, such as 4x4."""

    generation: str
    topology: str
    num_hosts: int
    chips_per_host: int

    @property
    def num_chips(self) -> int:
        """Chips of all hosts."""
        return self.num_hosts * self.chips_per_host

    @property
    def accelerator_type(self) -> str:
        """What Ray calls the generation, such as TPU-V5LITEPOD."""
        return f"TPU-{GENERATIONS[self.generation].upper()}"

    @property
    def pod_type(self) -> str:
        """What Ray and Google Cloud call such slices, such as v5litepod-16."""
        from ray._private.accelerators.tpu import infer_tpu_pod_type_from_topology

        name = infer_tpu_pod_type_from_topology(self.topology, self.accelerator_type)
        assert name is not None, self
        return name

    def __str__(self) -> str:
        return f"{self.generation} {self.topology}"


def tpu_slice(generation: str, topology: str) -> TpuSlice:
    """The slice of a generation in GENERATIONS; raises `ValueError` for a shape it does not have.

    Loads Ray, whose tables say what there is.
    """
    from ray._private.accelerators.tpu import VALID_TPU_TOPOLOGY
    from ray.util.tpu import get_tpu_worker_resources

    version = GENERATIONS[generation]
    known = sorted(VALID_TPU_TOPOLOGY[version], key=lambda each: (num_chips(each), each))
    if topology not in known:
        more = ", …" if len(known) > _NAMED_TOPOLOGIES else ""
        raise ValueError(
            f"{generation} has no topology {topology}{nearest(topology, known)}; "
            f"it has {', '.join(known[:_NAMED_TOPOLOGIES])}{more}"
        )
    # Ray would count otherwise where RAY_TPU_RESOURCE_PER_CHIP is set; a worker has whole hosts.
    hosts, resources = get_tpu_worker_resources(topology, version, tpu_resource_per_chip=1)
    return TpuSlice(generation, topology, hosts, int(resources["TPU"]))


def num_chips(topology: str) -> int:
    """Chips of a topology: 16 of 4x4."""
    return prod(int(each) for each in topology.split("x"))

"""The cluster settings of a run, and the shapes of TPU slices.

Importing this loads no Ray. Only a TPU's topology does: Ray's tables know the shapes of slices.
A slice is a block of chips with a network of their own. It is allocated as a whole; each of its
hosts is one Ray node and runs one worker.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from bert_core.errors import nearest

GENERATIONS = {"v4": "v4", "v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e", "v7x": "v7x"}
"""TPU generations by their usual names, and as Ray and Google Cloud write them."""

_NAMED_TOPOLOGIES = 9

Count = int | tuple[int, int]
"""A number, or the least and the most."""


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
    return prod(int(side) for side in topology.split("x"))


class ClusterSettings(BaseModel):
    """Where training runs: what a profile says."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    num_workers: Count = Field(
        default=1,
        description="training processes, or [least, most] for elastic training; on TPU one per"
        " host of the slices",
    )
    use_gpu: bool = Field(default=False, description="one GPU per worker")
    tpu: Literal["v4", "v5e", "v5p", "v6e", "v7x"] | None = Field(
        default=None, description="generation of the TPU to train on (pre-training alone)"
    )
    topology: str | None = Field(
        default=None, description="shape of a slice of the TPU, in chips: 4x4 or 2x2x2"
    )
    num_slices: Count = Field(
        default=1,
        description="TPU slices, or [least, most] for elastic training",
    )
    cpus_per_worker: float = Field(default=1, gt=0, description="CPUs Ray reserves for a worker")
    threads_per_worker: int | None = Field(
        default=None,
        ge=1,
        description="torch threads of a worker; by default the driver's cores divided by the"
        " fewest workers",
    )
    max_failures: int = Field(
        default=3, ge=0, description="times that lost workers are replaced before the run fails"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_worker_on_each_host(cls, values: Any) -> Any:  # noqa: ANN401 - not yet read
        """Without a number of workers there are as many as hosts; what is wrong is said below."""
        if not isinstance(values, dict) or "num_workers" in values or not values.get("tpu"):
            return values
        with suppress(KeyError, TypeError, ValueError):
            hosts = tpu_slice(values["tpu"], values["topology"]).num_hosts
            slices = _one_or_two(values.get("num_slices", 1))
            values = values | {"num_workers": [hosts * max(1, int(count)) for count in slices]}
        return values

    @field_validator("num_workers", "num_slices", mode="before")
    @classmethod
    def _one_number_is_no_pair(cls, value: object) -> object:
        """The command line makes a list of whatever may be one."""
        return value[0] if isinstance(value, list) and len(value) == 1 else value

    @field_validator("num_workers", "num_slices")
    @classmethod
    def _at_least_one(cls, value: Count) -> Count:
        least, most = (value, value) if isinstance(value, int) else value
        if not 1 <= least <= most:
            raise ValueError("give a number from 1, or [least, most] with least from 1 to most")
        return value

    @model_validator(mode="after")
    def _tpu_is_whole(self) -> Self:
        if self.tpu is None:
            if self.topology is not None or self.num_slices != 1:
                raise ValueError("topology and num_slices are of a TPU: set --cluster.tpu too")
            return self
        if self.use_gpu:
            raise ValueError(
                "a worker has a TPU or a GPU: set --cluster.use_gpu false or leave out "
                "--cluster.tpu"
            )
        if self.topology is None:
            example = "4x4" if self.tpu in ("v5e", "v6e") else "2x2x2"
            raise ValueError(
                f"set --cluster.topology, the shape of the TPU slice, such as {example}"
            )
        hosts = self.tpu_slice.num_hosts
        wanted = [hosts * count for count in _one_or_two(self.num_slices)]
        if _one_or_two(self.num_workers) != wanted:
            raise ValueError(
                f"a slice {self.tpu_slice} has {_count(hosts, 'host')} with one worker each: "
                f"{_count(self.num_workers, 'worker')} do not fit "
                f"{_count(self.num_slices, 'slice')}, {_said(wanted)} would; set "
                f"--cluster.num_workers {_typed(wanted)}"
            )
        return self

    def without_tpu(self) -> Self:
        """Itself; raises `ValueError` where a TPU is asked for."""
        if self.tpu is not None:
            raise ValueError(
                "only pre-training, workflows/pretrain.py, runs on TPU: choose --profile gpu or "
                "local, or leave out --cluster.tpu"
            )
        return self

    @property
    def tpu_slice(self) -> TpuSlice:
        """The slice that `tpu` and `topology` name; raises `ValueError` where there is no such."""
        if self.tpu is None or self.topology is None:
            raise ValueError("no TPU")
        return tpu_slice(self.tpu, self.topology)

    @property
    def fewest_workers(self) -> int:
        """The number of workers without which nothing starts."""
        return _one_or_two(self.num_workers)[0]

    @property
    def most_workers(self) -> int:
        """The number of workers that there may be."""
        return _one_or_two(self.num_workers)[-1]

    @property
    def fewest_slices(self) -> int:
        """The number of TPU slices without which nothing starts."""
        return _one_or_two(self.num_slices)[0]


def _one_or_two(count: Any) -> list[int]:  # noqa: ANN401 - not yet read
    return list(count) if isinstance(count, list | tuple) else [count]


def _said(count: Count | list[int]) -> str:
    return " to ".join(map(str, _one_or_two(count)))


def _typed(count: list[int]) -> str:
    return str(count[0]) if len(count) == 1 else json.dumps(count, separators=(",", ":"))


def _count(count: Count, noun: str) -> str:
    return f"{_said(count)} {noun}" if count == 1 else f"{_said(count)} {noun}s"

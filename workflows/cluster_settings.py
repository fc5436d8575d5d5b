"""What a user may set about the workers; it stands here so that reading it loads no Ray.

But where a TPU is asked for: Ray's tables know the shapes of its slices.
"""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

if TYPE_CHECKING:
    from workflows.tpu_slices import TpuSlice

Count = int | tuple[int, int]
"""A number, or the least and the most."""


class ClusterSettings(BaseModel):
    """Where training runs: what a profile says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_workers: Count = Field(
        default=1,
        description="training processes; a pair [least, most] lets Ray start with what it has. On"
        " TPU one for each host of the slices, which need not be said",
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
        description="slices of the TPU; a pair [least, most] lets Ray start with those it has",
    )
    cpus_per_worker: float = Field(default=1, gt=0, description="CPUs Ray reserves for a worker")
    threads_per_worker: int | None = Field(
        default=None,
        ge=1,
        description="torch threads of a worker; by default the cores of the driver's machine shared"
        " out among the fewest workers, so that it stays the same when others come",
    )
    max_failures: int = Field(
        default=3, ge=0, description="times that lost workers are replaced before the run gives up"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_worker_on_each_host(cls, values: Any) -> Any:  # noqa: ANN401 - not yet read
        """Without a number of workers there are as many as hosts; what is wrong is said below."""
        if not isinstance(values, dict) or "num_workers" in values or not values.get("tpu"):
            return values
        with suppress(KeyError, TypeError, ValueError):
            hosts = _slice(values["tpu"], values["topology"]).num_hosts
            slices = _one_or_two(values.get("num_slices", 1))
            values = values | {"num_workers": [hosts * max(1, int(each)) for each in slices]}
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
        wanted = [hosts * each for each in _one_or_two(self.num_slices)]
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
    def tpu_slice(self) -> "TpuSlice":
        """The slice that `tpu` and `topology` name; raises `ValueError` where there is no such."""
        if self.tpu is None or self.topology is None:
            raise ValueError("no TPU")
        return _slice(self.tpu, self.topology)

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


def _slice(generation: str, topology: str) -> "TpuSlice":
    from workflows.tpu_slices import tpu_slice

    return tpu_slice(generation, topology)


def _one_or_two(count: Any) -> list[int]:  # noqa: ANN401 - not yet read
    return list(count) if isinstance(count, list | tuple) else [count]


def _said(count: Count | list[int]) -> str:
    return " to ".join(map(str, _one_or_two(count)))


def _typed(count: list[int]) -> str:
    return str(count[0]) if len(count) == 1 else json.dumps(count, separators=(",", ":"))


def _count(count: Count, noun: str) -> str:
    return f"{_said(count)} {noun}" if count == 1 else f"{_said(count)} {noun}s"

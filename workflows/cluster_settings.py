"""What a user may set about the workers; it stands here so that reading it loads no Ray."""

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ClusterSettings(BaseModel):
    """Where training runs: what a profile says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_workers: int | tuple[int, int] = Field(
        default=1,
        description="training processes; a pair [least, most] lets Ray start with what it has",
    )
    use_gpu: bool = Field(default=False, description="one GPU per worker")
    cpus_per_worker: float = Field(default=1, gt=0, description="CPUs Ray reserves for a worker")
    threads_per_worker: int | None = Field(
        default=None,
        ge=1,
        description="torch threads of a worker; by default the cores shared out evenly",
    )
    max_failures: int = Field(
        default=3, ge=0, description="times that lost workers are replaced before the run gives up"
    )

    @field_validator("num_workers", mode="before")
    @classmethod
    def _one_number_is_no_pair(cls, value: object) -> object:
        """The command line makes a list of whatever may be one."""
        return value[0] if isinstance(value, list) and len(value) == 1 else value

    @field_validator("num_workers")
    @classmethod
    def _at_least_one_worker(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        least, most = (value, value) if isinstance(value, int) else value
        if not 1 <= least <= most:
            raise ValueError("give a number from 1, or [least, most] with least from 1 to most")
        return value

    @property
    def fewest_workers(self) -> int:
        """The number of workers without which nothing starts."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def most_workers(self) -> int:
        """The number of workers that there may be."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

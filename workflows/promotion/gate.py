"""A YAML file of what a version must meet before it becomes champion -> a `Gate`.

docs/promotion.md has the format; `workflows.promotion.gate_checks` measures and judges.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bert_core.errors import UserError, nearest
from bert_core.strict_yaml import line_of, read_strict_yaml

if TYPE_CHECKING:
    from yaml.nodes import Node

CRITERION = "criterion"
"""In a gate, the metric that decides the task, whatever its name."""
DROP_ON_DATA = 0.02
"""What may be lost where no gate is given, at the worst end of the interval on --data."""
LESS_IS_BETTER = ("_error", "_loss", "perplexity")
"""What the metrics end with of which less is better."""
MEGABYTE = 1_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckFile(_Strict):
    """A file of behavioural checks (docs/behavioural_checks.md)."""

    file: Path = Field(description="the file, beside the gate's file where it is relative")
    pass_rate: float = Field(
        default=1.0, ge=0, le=1, description="the share of cases that each of its checks must pass"
    )


class MeasuredWith(_Strict):
    """How latency and memory are measured: requests of the data's texts, on the CPU."""

    requests: int = Field(default=200, ge=20, description="requests, one after the other")
    batch_size: int = Field(default=1, ge=1, description="examples of a request")
    threads: int = Field(default=1, ge=1, description="threads that compute")


class Gate(_Strict):
    """What a version must meet; what is not given is not asked."""

    data: str | None = Field(
        default=None,
        description="held-out data that both versions are measured on, as evaluate.py takes it; a"
        " path lies beside the gate's file where it is relative",
    )
    split: str = Field(default="dev", description="which file of a folder: train, dev, test, …")
    options: dict[str, str] = Field(
        default={}, description="options of the model's task for this data, text_column: title"
    )
    metrics: dict[str, float] = Field(
        default={},
        description="the least of a metric, accuracy: 0.85 (the most of an error or a loss)",
    )
    largest_drop: dict[str, float] = Field(
        default={},
        description="how much of a metric may be lost against the champion, accuracy: 0.01; on the"
        " data, the whole 95 % interval of the paired difference has to lie above -0.01",
    )
    checks: list[CheckFile] = Field(default=[], description="files of behavioural checks")
    p95_latency_ms: float | None = Field(
        default=None, gt=0, description="the most milliseconds that 95 of 100 requests take"
    )
    memory_mb: float | None = Field(
        default=None,
        gt=0,
        description="the most resident memory of a fresh process that loads and answers, in MB",
    )
    folder_mb: float | None = Field(
        default=None, gt=0, description="the largest model folder, in MB of 1,000,000 bytes"
    )
    measured_with: MeasuredWith = MeasuredWith()

    @model_validator(mode="after")
    def _drops_are_losses(self) -> Self:
        for name, value in self.largest_drop.items():
            if value < 0:
                raise ValueError(f"largest_drop.{name} is {value:g}: write how much may be lost")
        return self


def read_gate(path: Path) -> Gate:
    """Reads a gate file; its relative paths are then those of files beside it.

    Raises `UserError`, with file and line and the nearest name, for what is not understood.
    """
    content, root = read_strict_yaml(path)
    if not isinstance(content, dict):
        raise UserError("no gate", str(path), "write `metrics: {accuracy: 0.85}`")
    try:
        gate = Gate.model_validate(content)
    except ValidationError as error:
        raise _user_error(error, path, root) from error
    beside = path.parent
    changes: dict[str, Any] = {
        "checks": [
            each.model_copy(update={"file": beside / each.file.expanduser()})
            for each in gate.checks
        ]
    }
    if gate.data is not None and "://" not in gate.data:
        changes["data"] = str(beside / Path(gate.data).expanduser())
    return gate.model_copy(update=changes)


def default_gate(data: str | None) -> Gate:
    """The gate where none is given: no worse than the champion in the task's own criterion.

    On data, an interval that ends 0.02 below is no worse; of the metrics recorded in training,
    which have none, nothing may be lost.
    """
    return Gate(data=data, largest_drop={CRITERION: 0.0 if data is None else DROP_ON_DATA})


def require_data(gate: Gate, where: str) -> None:
    """Raises `UserError` where a gate asks for requests and has no texts to make them of."""
    wanted = [name for name in ("p95_latency_ms", "memory_mb") if getattr(gate, name) is not None]
    if wanted and gate.data is None:
        raise UserError(f"{wanted[0]} without texts to measure it on", where, "give data")


def less_is_better(metric: str) -> bool:
    """Whether a metric is an error or a loss."""
    return metric.endswith(LESS_IS_BETTER)


def _user_error(error: ValidationError, path: Path, root: "Node") -> UserError:
    first = error.errors()[0]
    place = first["loc"]
    where = f"{path}:{line_of(root, place)}"
    if first["type"] == "extra_forbidden":
        known = _fields_at(place[:-1])
        name = str(place[-1])
        return UserError(f"unknown key {name}{nearest(name, known)}", where, ", ".join(known))
    named = ".".join(str(part) for part in place)
    message = first["msg"].removeprefix("Value error, ")
    what = f"{named}: {message}" if named else message
    return UserError(what, where, "see docs/promotion.md")


def _fields_at(place: Sequence[str | int]) -> list[str]:
    within = {"checks": CheckFile, "measured_with": MeasuredWith}
    return list(within.get(str(place[0]), Gate).model_fields if place else Gate.model_fields)

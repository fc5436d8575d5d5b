"""The gate: the requirements that a version must meet, and the lines of its verdict.

docs/promotion.md has the file format; `workflows.promotion.gate_checks` measures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bert_core.errors import UserError, nearest, refusal
from bert_core.strict_files import line_of, read_strict_yaml
from bert_core.tasks.metrics import less_is_better

if TYPE_CHECKING:
    from yaml.nodes import Node

    from bert_core.evaluation.intervals import Interval  # loads torch, and --help reads this module

CRITERION = "criterion"
"""In a gate, the metric that selects the task's best epoch, whatever its name."""
DROP_ON_DATA = 0.02
"""Largest drop without a gate file, at the lower end of the interval on --data."""
MEGABYTE = 1_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckFile(_Strict):
    """A file of behavioural checks (docs/behavioural_checks.md)."""

    file: Path = Field(description="the file; a relative path starts at the gate's folder")
    pass_rate: float = Field(
        default=1.0, ge=0, le=1, description="the share of cases that each of its checks must pass"
    )


class MeasuredWith(_Strict):
    """How latency and memory are measured: requests of the data's texts, on the CPU."""

    requests: int = Field(default=200, ge=20, description="requests, one after the other")
    batch_size: int = Field(default=1, ge=1, description="examples of a request")
    threads: int = Field(default=1, ge=1, description="threads that compute")


class Gate(_Strict):
    """The requirements of a version; all of them are optional."""

    data: str | None = Field(
        default=None,
        description="held-out data on which both versions are measured, as in evaluate.py; a"
        " relative path starts at the gate's folder",
    )
    split: str = Field(default="dev", description="split of a folder to read: train, dev, test, …")
    options: dict[str, str] = Field(
        default={}, description="options of the model's task for this data, text_column: title"
    )
    metrics: dict[str, float] = Field(
        default={},
        description="minimum of a metric, accuracy: 0.85 (maximum of an error or a loss)",
    )
    largest_drop: dict[str, float] = Field(
        default={},
        description="allowed drop of a metric against the champion, accuracy: 0.01; on the data,"
        " the whole 95 % interval of the paired difference has to lie above -0.01",
    )
    checks: list[CheckFile] = Field(default=[], description="files of behavioural checks")
    p95_latency_ms: float | None = Field(
        default=None, gt=0, description="maximum latency of 95 % of the requests, in milliseconds"
    )
    memory_mb: float | None = Field(
        default=None,
        gt=0,
        description="maximum resident memory of a new process that loads and predicts, in MB",
    )
    folder_mb: float | None = Field(
        default=None, gt=0, description="maximum size of the model folder, in MB of 1,000,000 bytes"
    )
    measured_with: MeasuredWith = MeasuredWith()

    @model_validator(mode="after")
    def _drops_are_losses(self) -> Self:
        for name, value in self.largest_drop.items():
            if value < 0:
                raise ValueError(
                    f"largest_drop.{name} is {value:g}: write the allowed drop, 0 or more"
                )
        return self


def read_gate(path: Path) -> Gate:
    """Reads a gate file; its relative paths start at its folder.

    Raises `UserError`, with file, line and the nearest name, for anything unknown.
    """
    content, root = read_strict_yaml(path)
    if not isinstance(content, dict):
        raise UserError("not a gate", str(path), "write `metrics: {accuracy: 0.85}`")
    try:
        gate = Gate.model_validate(content)
    except ValidationError as error:
        raise _user_error(error, path, root) from error
    folder = path.parent
    changes: dict[str, Any] = {
        "checks": [
            check.model_copy(update={"file": folder / check.file.expanduser()})
            for check in gate.checks
        ]
    }
    if gate.data is not None and "://" not in gate.data:
        changes["data"] = str(folder / Path(gate.data).expanduser())
    return gate.model_copy(update=changes)


def default_gate(data: str | None) -> Gate:
    """Returns the gate without a gate file: no drop of the task's criterion against the champion.

    On data the lower end of the interval may be 0.02 below; metrics recorded in training, which
    have no interval, may not drop at all.
    """
    return Gate(data=data, largest_drop={CRITERION: 0.0 if data is None else DROP_ON_DATA})


def require_data(gate: Gate, where: str) -> None:
    """Raises `UserError` for a gate with latency or memory but no data to measure them on."""
    wanted = [name for name in ("p95_latency_ms", "memory_mb") if getattr(gate, name) is not None]
    if wanted and gate.data is None:
        raise UserError(f"{wanted[0]} without texts to measure it on", where, "pass data")


def _user_error(error: ValidationError, path: Path, root: "Node") -> UserError:
    first = error.errors()[0]
    place = first["loc"]
    where = f"{path}:{line_of(root, place)}"
    if first["type"] == "extra_forbidden":
        known = _fields_at(place[:-1])
        name = str(place[-1])
        return UserError(f"unknown key {name}{nearest(name, known)}", where, ", ".join(known))
    named = ".".join(str(part) for part in place)
    what = f"{named}: {refusal(error)}" if named else refusal(error)
    return UserError(what, where, "see docs/promotion.md")


def _fields_at(place: Sequence[str | int]) -> list[str]:
    within = {"checks": CheckFile, "measured_with": MeasuredWith}
    return list(within.get(str(place[0]), Gate).model_fields if place else Gate.model_fields)


@dataclass(frozen=True)
class GateLine:
    """One requirement and its verdict; `values` are its figures by names, for the record."""

    check: str
    measured: str
    required: str
    passed: bool
    values: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        return "passes" if self.passed else f"FAILS{self.reason and ': ' + self.reason}"


def least(name: str, value: float, required: float) -> GateLine:
    """Judges a metric against its minimum; an error or a loss against its maximum."""
    if less_is_better(name):
        return at_most(name, name, value, required, "")
    passed = value >= required
    return GateLine(name, f"{value:.4f}", f">= {required:g}", passed, {name: value})


def at_most(check: str, name: str, value: float, required: float, unit: str) -> GateLine:
    """Judges a figure, in its unit, against a maximum."""
    written = f"{value:.1f} {unit}" if unit else f"{value:.4f}"
    passed = value <= required
    return GateLine(check, written, f"<= {required:g} {unit}".strip(), passed, {name: value})


def drop(name: str, theirs: float, difference: "Interval", most: float, of: str) -> GateLine:
    """Judges the difference of a metric to the champion's, which may drop by `most`.

    The lower end of the interval has to be good enough. Refusing only what is shown to be worse
    would accept everything that is measured on few examples.
    """
    gain = gain_interval(name, difference)
    passed = gain.low >= -most - 1e-12
    could_be = not passed and gain.value >= -most
    reason = "too few examples to tell" if could_be else ""
    return GateLine(
        f"drop of {name}",
        f"{gain.text('+.4f')}, champion {theirs:.4f}, {of}",
        f">= {-most:g}" if most else ">= 0",
        passed,
        {f"gain.{name}": gain.value, f"gain.{name}.low": gain.low},
        reason,
    )


def no_champion(name: str) -> GateLine:
    """Passes a comparison with a champion if there is none yet."""
    return GateLine(f"drop of {name}", "no champion yet", "", passed=True)


def gain_interval(name: str, difference: "Interval") -> "Interval":
    """Converts a difference to a gain: above 0 is better for every metric."""
    if less_is_better(name):
        return type(difference)(-difference.value, -difference.high, -difference.low)
    return difference


def record(lines: Sequence[GateLine], gate: Gate, machine: str) -> dict[str, Any]:
    """Builds the report that is kept: the gate, the measurements, and the machine."""
    return {
        "passed": all(line.passed for line in lines),
        "machine": machine,
        "gate": gate.model_dump(mode="json", exclude_none=True),
        "checks": [
            {
                "check": line.check,
                "measured": line.measured,
                "required": line.required,
                "verdict": line.verdict,
                "values": dict(line.values),
            }
            for line in lines
        ],
    }


def table(lines: Sequence[GateLine]) -> list[list[str]]:
    """Builds the rows of `aligned_lines`."""
    titles = ["check", "measured", "required", "verdict"]
    return [titles, *([line.check, line.measured, line.required, line.verdict] for line in lines)]


def summary(lines: Sequence[GateLine]) -> str:
    """Says in one line how many checks passed, or which failed."""
    failed = [line.check for line in lines if not line.passed]
    if not failed:
        return f"passed {len(lines)} of {len(lines)}" if lines else "no requirements"
    return f"failed {len(failed)} of {len(lines)}: {', '.join(failed)}"

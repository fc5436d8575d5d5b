"""A figure and what was asked of it -> a line of the gate's table, with its verdict.

Of errors and losses less is better: for them what is asked is the most, and a gain is what is less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_core.evaluation.intervals import Interval
from workflows.promotion.gate import Gate, less_is_better
from workflows.promotion.gate_measurements import machine


@dataclass(frozen=True)
class GateLine:
    """One thing that was asked; `values` are its figures by names, for the record."""

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
    """A metric that has to be good enough."""
    if less_is_better(name):
        return at_most(name, name, value, required, "")
    passed = value >= required
    return GateLine(name, f"{value:.4f}", f">= {required:g}", passed, {name: value})


def at_most(check: str, name: str, value: float, required: float, unit: str) -> GateLine:
    """A figure of which there may be too much, in its unit."""
    written = f"{value:.1f} {unit}" if unit else f"{value:.4f}"
    passed = value <= required
    return GateLine(check, written, f"<= {required:g} {unit}".strip(), passed, {name: value})


def drop(name: str, theirs: float, difference: Interval, most: float, of: str) -> GateLine:
    """How a metric differs from the champion's, of which `most` may be lost.

    The worst that the data leaves possible has to be good enough: to let pass what is not shown to
    be worse would let everything pass that is measured on few examples.
    """
    gain = gain_interval(name, difference)
    measured = f"{gain.value:+.4f}"
    if gain.low != gain.high:
        measured += f" ({gain.low:+.4f} to {gain.high:+.4f})"
    passed = gain.low >= -most - 1e-12
    could_be = not passed and gain.value >= -most
    reason = "too few examples to tell" if could_be else ""
    return GateLine(
        f"drop of {name}",
        f"{measured}, champion {theirs:.4f}, {of}",
        f">= {-most:g}" if most else ">= 0",
        passed,
        {f"gain.{name}": gain.value, f"gain.{name}.low": gain.low},
        reason,
    )


def no_champion(name: str) -> GateLine:
    """What is asked against a champion where there is none yet."""
    return GateLine(f"drop of {name}", "no champion yet", "", passed=True)


def gain_interval(name: str, difference: Interval) -> Interval:
    """A difference as something gained, which is below 0 for a loss, of any metric."""
    if less_is_better(name):
        return Interval(-difference.value, -difference.high, -difference.low)
    return difference


def record(lines: Sequence[GateLine], gate: Gate) -> dict[str, Any]:
    """The measurements as they are kept: what was asked, what was found, on which machine."""
    return {
        "passed": all(each.passed for each in lines),
        "machine": machine(),
        "gate": gate.model_dump(mode="json", exclude_none=True),
        "checks": [
            {
                "check": each.check,
                "measured": each.measured,
                "required": each.required,
                "verdict": each.verdict,
                "values": dict(each.values),
            }
            for each in lines
        ],
    }


def table(lines: Sequence[GateLine]) -> list[list[str]]:
    """Titles and lines for `aligned_table`."""
    titles = ["check", "measured", "required", "verdict"]
    return [titles, *([each.check, each.measured, each.required, each.verdict] for each in lines)]


def summary(lines: Sequence[GateLine]) -> str:
    """In one line: how many checks passed, or which failed."""
    failed = [each.check for each in lines if not each.passed]
    if not failed:
        return f"passed {len(lines)} of {len(lines)}" if lines else "asked for nothing"
    return f"failed {len(failed)} of {len(lines)}: {', '.join(failed)}"

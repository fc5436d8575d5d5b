"""The figures of a run beside those of the run that was made of it again.

In: the figures of both by step and name, and the hashes of their weights. Out: whether they are the
same to the bit, by how much not and from which step on, and a table to print.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from workflows.reproduction.recorded_run import Values

_FIRST = ("dev/", "heldout/")
"""How the names begin that stand first in the table."""


@dataclass(frozen=True)
class Comparison:
    """Two runs: `recorded` and `again` hold each figure by step and name.

    The hashes of the weights are None where they are not known.
    """

    recorded: Values
    again: Values
    weights_recorded: str | None
    weights_again: str | None

    @cached_property
    def different(self) -> list[tuple[int, str]]:
        """Steps and names of the recorded figures that are not there again to the bit, in order."""
        # By repr, for which NaN is NaN and 0.0 is not -0.0.
        return sorted(
            key
            for key, value in self.recorded.items()
            if key not in self.again or repr(value) != repr(self.again[key])
        )

    @property
    def weights_are_known(self) -> bool:
        """Whether the weights of both are."""
        return None not in (self.weights_recorded, self.weights_again)

    @property
    def is_equal(self) -> bool:
        """Whether all is the same to the bit, the weights too as far as they are known."""
        weights = not self.weights_are_known or self.weights_recorded == self.weights_again
        return bool(self.recorded) and not self.different and weights

    def is_within(self, tolerance: float) -> bool:
        """Whether each recorded figure is there again, no further off than this; 0: to the bit."""
        if not tolerance:
            return self.is_equal
        return bool(self.recorded) and all(self.distance(key) <= tolerance for key in self.recorded)

    def distance(self, key: tuple[int, str]) -> float:
        """How far apart the two figures are; infinite where one is missing or no number."""
        if key not in self.again:
            return math.inf
        was, now = self.recorded[key], self.again[key]
        if repr(was) == repr(now):
            return 0.0
        apart = abs(was - now)
        return apart if math.isfinite(apart) else math.inf


def table_lines(comparison: Comparison) -> list[str]:
    """The last figure of each name, recorded and again, and the weights."""
    last: dict[str, tuple[int, str]] = {}
    for key in sorted(comparison.recorded):
        last[key[1]] = key
    names = sorted(last, key=lambda name: (not name.startswith(_FIRST), name))
    rows = [("figure", "recorded", "again", "difference")]
    for name in names:
        key = last[name]
        again = comparison.again.get(key)
        apart = comparison.distance(key)
        was, now = f"{comparison.recorded[key]:.9g}", "none" if again is None else f"{again:.9g}"
        rows.append((name, was, now, f"{apart:.3g}" if apart else "0"))
    hashes = [comparison.weights_recorded, comparison.weights_again]
    was, now = (each[:12] if each else "unknown" for each in hashes)
    verdict = "the same" if was == now else "another"
    rows.append(("weights", was, now, verdict if comparison.weights_are_known else "unknown"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(row[n].rjust(widths[n]) for n in (1, 2, 3))])
        for row in rows
    ]


def verdict_line(comparison: Comparison, tolerance: float) -> str:
    """What came of it in one line: the same, or what differs, by how much and from where on."""
    number = len(comparison.recorded)
    if comparison.is_equal:
        weights = "the weights too" if comparison.weights_are_known else "the weights are not known"
        return f"the same to the bit: {number:,} figures; {weights}"
    if not comparison.different:
        same = "no figure is recorded" if not number else f"all {number:,} figures are the same"
        return f"{same}, the weights are not"
    first_step, first_name = comparison.different[0]
    worst = max(comparison.different, key=comparison.distance)
    apart = comparison.distance(worst)
    most = f"by {apart:.3g}" if math.isfinite(apart) else "there is none again"
    text = (
        f"{len(comparison.different):,} of {number:,} figures differ, the first in step "
        f"{first_step} ({first_name}), most {worst[1]} of step {worst[0]}: {most}"
    )
    if comparison.is_within(tolerance):
        text += f"; within the tolerance of {tolerance:g}"
    return text

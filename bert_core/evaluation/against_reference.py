"""How variants differ from the one they are compared with: scores of seeds go in, differences out.

For an ablation: one reference, several variants, a few seeds of each; higher scores are better.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bert_core.evaluation.sweep import two_sided_critical_value


@dataclass(frozen=True)
class Difference:
    """A variant's mean less the reference's, in the scores' unit.

    `reach` is half of its 95 % interval; None where the seeds do not say what they alone do.
    """

    mean: float
    reach: float | None

    @property
    def is_told_apart(self) -> bool | None:
        """Whether the interval leaves out 0; None where there is none."""
        return None if self.reach is None else abs(self.mean) > self.reach


def differences(
    reference: Sequence[float], others: Mapping[str, Sequence[float]]
) -> dict[str, Difference]:
    """For each variant with scores how it differs; {} where the reference has none.

    The intervals hold all together with a confidence of 95 % (Dunnett 1955, two-sided). They take
    what a seed does to be the same for all (the deviation pooled over all that have several
    scores), so a variant whose seeds scatter makes all of them wider, never narrower.
    """
    scored = {name: scores for name, scores in others.items() if scores}
    if not reference or not scored:
        return {}
    several = [each for each in (reference, *scored.values()) if len(each) > 1]
    freedom = sum(len(each) - 1 for each in several)
    squares = sum(statistics.variance(each) * (len(each) - 1) for each in several)
    factor = None
    if squares:
        deviation = math.sqrt(squares / freedom)
        factor = deviation * two_sided_critical_value(len(scored), freedom)

    def difference(scores: Sequence[float]) -> Difference:
        mean = statistics.fmean(scores) - statistics.fmean(reference)
        if factor is None:
            return Difference(mean, None)
        return Difference(mean, factor * math.sqrt(1 / len(reference) + 1 / len(scores)))

    return {name: difference(scores) for name, scores in scored.items()}

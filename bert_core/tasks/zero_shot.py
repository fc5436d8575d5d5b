"""Zero-shot classification: labels that a model of entailment has never seen.

Each label becomes a hypothesis about the text (Yin et al. 2019, arXiv 1909.00161); how sure the
model is that it follows is the label's score. Shapes: C labels, L outputs of the model.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bert_core.errors import UserError
from bert_core.tasks.classification import Classification
from bert_core.tasks.task import softmax

PLACE = "{}"
"""Where the label stands in a template."""

TEMPLATE = "This example is {}."
"""That of `transformers`."""


def entailment_outputs(task: Classification) -> tuple[int, int] | None:
    """Which output says that a text follows, and which that it does not; None of another task.

    By the names of the labels, as `transformers` finds them.
    """
    names = [label.casefold() for label in task.output_names]
    entails = [number for number, name in enumerate(names) if name.startswith("entail")]
    if task.kind != "single" or task.reads_pairs is False or len(entails) != 1 or len(names) < 2:
        return None
    against = [n for n, name in enumerate(names) if name.startswith(("contra", "not_entail"))]
    (entailment,) = entails
    usual = -1 if entailment == 0 else 0
    return entailment, against[0] if len(against) == 1 else usual % len(names)


def hypotheses(labels: Sequence[str], template: str) -> list[str]:
    """The hypothesis of each label; raises `UserError` for a template without one place for it."""
    if (count := template.count(PLACE)) != 1:
        remedy = f"write {PLACE} once, where the label belongs"
        raise UserError(f"{PLACE} stands {count} times", "the template", remedy)
    return [template.replace(PLACE, label) for label in labels]


def label_scores(
    outputs: npt.NDArray[np.float64], entailment: int, contradiction: int, *, multi_label: bool
) -> npt.NDArray[np.float64]:
    """The score of each label, [C], from the outputs for its hypothesis, [C, L].

    They add up to 1, or, with `multi_label`, each is a probability of its own; so is that of a
    single label, whose share would always be 1.
    """
    if multi_label or len(outputs) == 1:
        return softmax(outputs[:, [contradiction, entailment]])[:, 1]
    return softmax(outputs[None, :, entailment])[0]

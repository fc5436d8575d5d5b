"""What a model is compared with that reads nothing: the majority classifier.

A model that gives every example the same answer is one.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_core.evaluation.outcomes import Outcome
from bert_core.tasks.classification import Classification
from bert_core.tasks.task import Predictions, Task


@dataclass(frozen=True)
class MajorityClassifier:
    """Gives every example the same `answer`: the most frequent label, or the set of labels.

    Of several labels each belongs there that more than half of the examples have. `share` is the
    share of the examples for which the answer is right, `metrics` are the task's.
    """

    answer: tuple[str, ...]
    share: float
    metrics: dict[str, float]

    @property
    def text(self) -> str:
        """What it answers."""
        return _shown(self.answer)


def majority_classifier(task: Task, examples: Sequence[Any]) -> MajorityClassifier | None:
    """The majority classifier of labelled examples; None for a task without labels of texts."""
    if not isinstance(task, Classification) or task.kind == "regression" or not examples:
        return None
    gold = [_labels(example.answer) for example in examples]
    counts = Counter(label for labels in gold for label in labels)
    if task.kind == "multiple":
        answer = tuple(name for name in task.labels if counts[name] > len(gold) / 2)
        prediction: dict[str, Any] = {"labels": list(answer)}
    else:
        answer = (max(task.labels, key=counts.__getitem__),)
        prediction = {"label": answer[0]}
    right = sum(set(answer) == set(labels) for labels in gold)
    metrics = task.metrics([prediction] * len(gold), examples)
    return MajorityClassifier(answer, right / len(gold), metrics)


def same_answer(
    task: Task, predictions: Predictions, results: Sequence[Outcome]
) -> tuple[str, ...] | None:
    """The labels that all predictions give although the right answers differ; None where none."""
    if not isinstance(task, Classification) or task.kind == "regression":
        return None
    found = {_labels(each["label" if "label" in each else "labels"]) for each in predictions}
    gold = {frozenset(_labels(each.gold)) for each in results}
    return next(iter(found)) if len(found) == 1 < len(gold) else None


def same_answer_warning(answer: tuple[str, ...] | None, num_examples: int) -> str:
    """One line about predictions that are all the same; empty where they are not."""
    if answer is None:
        return ""
    return f"all {num_examples:,} predictions are the same: {_shown(answer)}"


def _shown(answer: Sequence[str]) -> str:
    return ", ".join(answer) or "no label"


def _labels(answer: str | Sequence[str]) -> tuple[str, ...]:
    return (answer,) if isinstance(answer, str) else tuple(answer)

"""Distillation: a student learns a teacher's outputs besides, or instead of, labels.

Hinton et al. 2015 (arXiv 1503.02531): the soft cross entropy between teacher and student, both at a
temperature, times its square, so that its gradients stay as large as those of labels.
Shapes: P places, L outputs of the head, I items, R rows, N examples, W words, k choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.model.bert import Bert
from bert_core.settings import DistillationSettings
from bert_core.tasks.classification import Classification, outputs_of_examples
from bert_core.tasks.encoded_rows import EncodedRows, LayoutName, TaskBatch
from bert_core.tasks.label_loss import LabelLoss
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering, by_row
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task, labelled_loss
from bert_core.text.rng import IntArray


@dataclass(frozen=True)
class TaughtBatch(TaskBatch):
    """A micro-batch with the teacher's outputs: `targets` [P, L], NaN where it has none."""

    targets: Tensor


@dataclass(frozen=True)
class TaughtRows(EncodedRows):
    """Rows with the teacher's outputs at their places, `targets` [P, L], NaN where it has none.

    Of a head that answers each row at once they are [R, L].
    """

    targets: FloatArray = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))

    @classmethod
    def joined(cls, parts: Sequence[tuple[EncodedRows, FloatArray]]) -> Self:
        """Several sets of rows of one task, end to end, without their notes."""
        rows = [each for each, _ in parts]
        counts = np.array([len(each.num_tokens) for each in rows])
        firsts = np.cumsum(counts) - counts
        values: dict[str, Any] = {
            each.name: np.concatenate([getattr(some, each.name) for some in rows])
            for each in fields(EncodedRows)
            if each.name not in ("notes", "lost", "counts", "limited_part")
        }
        values["example"] = np.concatenate(
            [each.example + first for each, first in zip(rows, firsts, strict=True)]
        )
        return cls(**values, targets=np.concatenate([targets for _, targets in parts]))

    @cached_property
    def label_counts(self) -> IntArray:
        """Decisions of each item that carry a loss, by a label or by the teacher, [I]."""
        missing = np.isnan(self.labels) if self.labels.dtype == np.float32 else self.labels < 0
        known = np.asarray(~missing.reshape(len(self.labels), -1).any(axis=1))
        taught = np.asarray(~np.isnan(self.targets).any(axis=1))  # [P]
        if len(known) == len(taught):
            known = known | taught
        else:  # one decision of an item, about all its places
            items = np.repeat(np.arange(self.num_items), self._answers_per_item)
            known = known | (np.bincount(items, ~taught, self.num_items) == 0)
        sums = np.concatenate([[0], np.cumsum(known)])
        ends = np.cumsum(self.labels_per_item)
        return sums[ends] - sums[ends - self.labels_per_item]

    @property
    def _is_per_row(self) -> bool:
        return len(self.targets) == len(self.lengths)

    @property
    def _answers_per_item(self) -> IntArray:
        starts = np.cumsum(self.rows_per_item) - self.rows_per_item
        return (
            self.rows_per_item if self._is_per_row else np.add.reduceat(self.place_counts, starts)
        )

    def batch(
        self, items: IntArray, layout: LayoutName, *, without_labels: bool = False
    ) -> TaughtBatch:
        """See `EncodedRows.batch`."""
        batch = super().batch(items, layout, without_labels=without_labels)
        values: dict[str, Any] = {each.name: getattr(batch, each.name) for each in fields(batch)}
        targets = self.targets[self.answers_of(items, per_row=self._is_per_row)]
        if without_labels:
            targets = np.full_like(targets, np.nan)
        return TaughtBatch(**values, targets=torch.from_numpy(targets))


def distilled_loss(
    task: Task,
    model: Bert,
    batch: TaughtBatch,
    *,
    num_labels: int,
    settings: DistillationSettings,
    shape: LabelLoss | None = None,
) -> tuple[Tensor, Tensor]:
    """As `task_loss`: alpha times the teacher's part, the rest that of labels, where there are any.

    `num_labels` counts the decisions of the global batch, so that every example weighs alike. The
    sums are those of `task_loss`, the summed soft loss, and the number of decisions of the batch.
    """
    outputs, total, sums = labelled_loss(task, model, batch, shape)
    soft, taught = soft_loss(task, outputs, batch, settings.temperature)
    loss = settings.alpha * soft + (1 - settings.alpha) * total
    decisions = torch.maximum(sums[2], taught)
    return loss / max(num_labels, 1), torch.cat([sums, torch.stack([soft.detach(), decisions])])


def soft_loss(
    task: Task, outputs: Tensor, batch: TaughtBatch, temperature: float
) -> tuple[Tensor, Tensor]:
    """The summed loss of outputs [P, L] before the teacher's, 0-d, and of how many decisions.

    Labels that exclude each other: soft cross entropy. Several labels: the same of each, averaged.
    A number: the squared error to the teacher's. Choices: soft cross entropy over those of an
    example. Spans: half of that over the tokens of a row, for start and end.
    """
    targets = batch.targets
    if isinstance(task, MultipleChoice):
        outputs, targets = (each.view(len(batch.labels), -1) for each in (outputs, targets))
    if isinstance(task, QuestionAnswering):
        outputs, targets = (by_row(each, batch).flatten(0, 1) for each in (outputs, targets))
    known = ~targets.isnan().any(1)
    targets = torch.where(known[:, None], targets, 0)
    if isinstance(task, Classification) and task.kind == "regression":
        each = (outputs - targets).square().sum(1)
    elif isinstance(task, Classification) and task.kind == "multiple":
        wanted = (targets / temperature).sigmoid()
        each = F.binary_cross_entropy_with_logits(outputs / temperature, wanted, reduction="none")
        each = each.mean(1) * temperature**2
    else:
        wanted = (targets / temperature).softmax(1)
        surprise = -(outputs / temperature).log_softmax(1)
        surprise = surprise.masked_fill(surprise.isinf(), 0)  # behind the end of a row
        each = (wanted * surprise).sum(1) * temperature**2
    share = 2 if isinstance(task, QuestionAnswering) else 1
    return (each * known).sum() / share, known.sum().float() / share


def kind_of_answers(task: Task) -> str | None:
    """What a task's answers are, in a word; None where no teacher can be asked for them."""
    match task:
        case Classification():
            names = {"single": "a label", "multiple": "several labels", "regression": "a number"}
            return names[task.kind]
        case Tagging():
            return "tags of words"
        case MultipleChoice():
            return "a choice"
        case QuestionAnswering():
            return "a passage"
    return None


def targets_of(
    task: Task, rows: EncodedRows, teacher: Task, read: EncodedRows, outputs: FloatArray
) -> FloatArray:
    """A teacher's outputs at the places of a student's `rows` of the same examples, [P, L].

    `read` are the rows that the teacher has made of them, with its `outputs` [places, L]. What
    several windows say of a text is averaged by their tokens, as in predictions; tags go by words,
    NaN for those that the teacher has not read. Labels come in the order of the student's `task`.
    """
    if task.labels != teacher.labels:
        outputs = outputs[:, [teacher.labels.index(label) for label in task.labels]]
    if isinstance(task, Classification):
        return outputs_of_examples(outputs, read, len(read.num_tokens))[rows.example]
    if isinstance(task, Tagging):
        words, theirs = rows.notes["words"], read.notes["words"]
        count = 1 + max(int(words.max(initial=0)), int(theirs.max(initial=0)))
        of_words = np.full((count, outputs.shape[1]), np.nan, dtype=np.float32)
        of_words[theirs] = outputs
        return of_words[words]
    if isinstance(task, QuestionAnswering) and not same_tokens(rows, read):
        raise ValueError("rows of a question are other ones for the teacher")
    return outputs


def same_tokens(first: EncodedRows, second: EncodedRows) -> bool:
    """Whether two sets of rows have the same tokens in the same windows."""
    arrays: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = [
        (first.lengths, second.lengths),
        (first.input_ids, second.input_ids),
    ]
    return all(np.array_equal(one, other) for one, other in arrays)

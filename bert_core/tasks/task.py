"""The interface of a fine-tuning task: `Task`, its functions and the settings they need.

`encode` turns examples into rows; `decode` turns outputs of the head into predictions.
Shapes: P places (where the head answers), L outputs of the head, N rows, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, field_validator
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.tasks.encoded_rows import EncodedRows, FeatureBatch, RowPooling, TaskBatch

if TYPE_CHECKING:
    from torch import Tensor

    from bert_core.model.bert import Bert
    from bert_core.model.encoder import Encoder
    from bert_core.model.tagger import FeatureTagger
    from bert_core.tasks.label_loss import LabelLoss

# --help reads the tasks: torch is loaded within functions.

SUM_NAMES = ("loss", "correct", "count")
"""What the sums of `loss` are, in order; `correct` is 0 where nothing is right or wrong."""

FloatArray = npt.NDArray[np.float32]

Predictions = Sequence[Mapping[str, Any]]
"""What `Task.decode` gives for each example, ready for JSON."""


@dataclass(frozen=True)
class HeadShape:
    """A task's head: its name in `Bert.heads`, its outputs, and whether it reads the pooler.

    One that is `per_row` answers each row at once, not each place: where it is `pooled`, the mean
    of the row's places. Vectors have no `num_outputs` of their own, but the encoder's width, or one
    for each word of the vocabulary.
    """

    name: str
    num_outputs: int
    pooled: bool
    per_row: bool = False

    @property
    def reads_mean(self) -> bool:
        """Whether it answers to the mean of a row's states."""
        return self.pooled and self.per_row


ClassifierPooling = Annotated[
    RowPooling,
    Field(
        description="what the classifier reads: cls, the state of [CLS], as in the paper, or mean,"
        " that of all tokens, of an encoder of the modern block"
    ),
]


def pooled_head(num_outputs: int, pooling: RowPooling) -> HeadShape:
    """The pooler's classifier with so many outputs."""
    return HeadShape("classifier", num_outputs, pooled=True, per_row=pooling == "mean")


class Task(BaseModel, ABC):
    """A kind of question to an encoder, and the settings that are its own.

    A task is an immutable set of settings. The labels are learned from training data and added by
    `with_labels`. The settings are stored in the model folder, so that a model knows its task.
    Examples are of a type that each task defines.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: ClassVar[str]
    """The class of `transformers` that loads the model folder."""

    is_coupled: ClassVar[bool] = False
    """Whether a step's loss is one of all its examples together, as in
    `bert_core.tasks.coupled_batches`, and `loss` is not called."""

    divides_itself: ClassVar[bool] = False
    """Whether its data may be one file, which it divides into train, dev and test."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Options of the base class that say nothing to this task."""

    max_length: int = Field(default=128, ge=8, description="longest row")
    labels: tuple[str, ...] = Field(
        default=(),
        description="names of the answers, in the order of the outputs; by default those of"
        " the training data, sorted",
    )

    @field_validator("labels")
    @classmethod
    def _labels_are_different(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        if len({*labels}) < len(labels):
            raise ValueError("a label is repeated")
        return labels

    def written(self) -> dict[str, Any]:
        """The settings as JSON, as a folder or a recipe has them: what follows others is said."""
        return self.model_dump(mode="json")

    def ignored_options(self) -> dict[str, str]:
        """The options that are set and say nothing to this task as it is, each with the reason.

        Whoever takes options from a user refuses these (`refuse_ignored_options`).
        """
        fields = type(self).model_fields
        return {
            name: "has no effect on this task"
            for name in self.unused
            if getattr(self, name) != fields[name].default
        }

    @property
    @abstractmethod
    def criterion(self) -> str:
        """The metric that selects the best epoch; more of it is better (`less_is_better`)."""

    @property
    @abstractmethod
    def head(self) -> HeadShape:
        """The head that answers."""

    @abstractmethod
    def examples(self, data: str | Path, split: str) -> Sequence[Any]:
        """Reads the examples of `train`, `dev` or `test` from a file, a folder or an address.

        An address is a string with `://`, such as `docs://numpy`, for tasks that know it.

        Raises `UserError`, naming file and line, for what cannot be read.
        """

    @abstractmethod
    def texts(self, example: Any) -> list[str]:  # noqa: ANN401 - of any task
        """Everything in an example that is read, without its answer."""

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of examples, with labels where the examples have them.

        Raises `UserError` for a label that is not among `labels`.
        """

    @abstractmethod
    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """The summed loss of a micro-batch, 0-d, and how many labels it gets right, 0-d.

        `outputs` is [P, L], in the order of `batch.places`.
        """

    @property
    def has_label_loss(self) -> bool:
        """Whether it decides about labels one by one, so that `label_loss` is defined."""
        return False

    def label_loss(
        self, outputs: "Tensor", batch: TaskBatch, shape: "LabelLoss"
    ) -> "tuple[Tensor, Tensor]":
        """As `loss`, where decisions count as `shape` says; `loss` is that of `label_loss.PLAIN`.

        Raises `NotImplementedError` where there is no such loss.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss of labels")

    @property
    def tunable(self) -> tuple[str, ...]:
        """What of its decisions can be tuned on dev, by the names of `DecisionSettings`."""
        return ()

    @abstractmethod
    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """A prediction for each example, ready for JSON; `outputs` is [P, L], those of `rows`."""

    @abstractmethod
    def metrics(self, predictions: Predictions, examples: Sequence[Any]) -> dict[str, float]:
        """The task's metrics over examples with labels, the paper's among them, by name.

        All of them are logged as `dev/NAME` and reported.
        """

    def label_names(self, examples: Sequence[Any]) -> set[str] | None:
        """The labels that occur; None for a task whose answers are not labels."""
        del examples
        return None

    def label_warnings(self) -> list[str]:
        """Describes suspicious labels, one line each, to be read before training."""
        return []

    def unanswered(self, examples: Sequence[Any]) -> dict[str, int]:
        """How many examples have no answer, by the reason; see `has_answer`."""
        count = sum(not has_answer(example) for example in examples)
        return {"without an answer": count} if count else {}

    def with_labels(self, examples: Sequence[Any]) -> Self:
        """This task with the labels of these training examples, unless it has labels already."""
        found = self.label_names(examples)
        if found is None or self.labels:
            return self
        return self.model_copy(update={"labels": tuple(sorted(found, key=_label_order))})

    def tuned(self, predictions: Predictions, examples: Sequence[Any]) -> Self:
        """Returns this task with the settings chosen on dev, such as a threshold."""
        del predictions, examples
        return self

    @property
    def problem_type(self) -> str | None:
        """The `problem_type` in the model folder, as `transformers` defines it."""
        return None


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Probabilities [N, L] of logits [N, L]."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def has_answer(example: Any) -> bool:  # noqa: ANN401 - of any task
    """Whether the right answer of an example is known, be it an answer, answers, or tags.

    Of an example that has none of these it is.
    """
    names = ("answer", "answers", "tags")
    return all(getattr(example, name, ...) is not None for name in names)


def refuse_ignored_options(task: Task, given: Collection[str] | None = None) -> None:
    """Raises `UserError` for an option without effect, among those `given`, or among all."""
    for name, reason in task.ignored_options().items():
        if given is None or name in given:
            raise UserError(f"{name} {reason}", f"--options.{name}", "leave it out")


def _label_order(label: str) -> tuple[int, str]:
    """Whole numbers by their size, everything else by its letters."""
    return (len(label) if label.isdecimal() else 0, label)


def compute_outputs(model: "Bert | FeatureTagger", batch: TaskBatch) -> "Tensor":
    """The head's answers, [P, L], at the places of a batch.

    A tagger without its encoder answers from the states that the batch brings.
    """
    from bert_core.model.tagger import FeatureTagger

    if isinstance(model, FeatureTagger):
        assert isinstance(batch, FeatureBatch)
        return model(batch.states.unbind(), batch.place_counts)
    states = hidden_states(model.encoder, batch, layers_read(model))
    return head_answers(model, states, batch.place_counts)


def hidden_states(encoder: "Encoder", batch: TaskBatch, layers: Sequence[int]) -> "list[Tensor]":
    """The states of `layers`, [P, H] each, at the places of a batch; see `Encoder`."""
    places = places_read(encoder, batch)
    return encoder.hidden_states(*batch.inputs, layers=layers, places=places)


def places_read(encoder: "Encoder", batch: TaskBatch) -> "Tensor":
    """The tokens whose states the heads read, [P]; see `TaskBatch.places_in_decoder`."""
    return batch.places_in_decoder if encoder.config.is_decoder else batch.places


def layers_read(model: "Bert") -> tuple[int, ...]:
    """The layers whose states the head reads, 0 being the embeddings."""
    from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger

    if FEATURE_TAGGER not in model.heads:
        return (model.config.num_hidden_layers,)
    tagger = model.heads[FEATURE_TAGGER]
    assert isinstance(tagger, FeatureTagger)
    return tuple(tagger.layers.tolist())


def head_answers(model: "Bert", states: "Sequence[Tensor]", place_counts: "Tensor") -> "Tensor":
    """The head's answers, [P, L], to the states [P, H] of each layer it reads.

    `place_counts` [R] says how many places belong to each row.
    """
    from bert_core.model.bert import VECTORS, WORDS, MaskedTokenHead
    from bert_core.model.tagger import FEATURE_TAGGER

    heads = dict(model.heads.items())
    if FEATURE_TAGGER in heads:
        return heads[FEATURE_TAGGER](states, place_counts)
    (last,) = states
    if VECTORS in heads:
        last = heads.pop(VECTORS)(last, place_counts)
        if not heads:
            return last
    if isinstance(words := heads.get(WORDS), MaskedTokenHead):
        return words.word_weights(last, model.encoder.word_embeddings, place_counts)
    if "pooler" in heads:
        last = heads.pop("pooler")(last)
    (answering,) = heads.values()
    return answering(last)


def task_loss(
    task: Task,
    model: "Bert | FeatureTagger",
    batch: TaskBatch,
    *,
    num_labels: int,
    shape: "LabelLoss | None" = None,
) -> "tuple[Tensor, Tensor]":
    """The micro-batch's share of the global batch's mean loss, and its sums (SUM_NAMES), float32.

    `num_labels` counts the global batch, so the gradients of micro-batches and ranks add up to
    that of the whole. The loss is the task's own, or `label_loss` with a `shape`.
    """
    _, total, sums = labelled_loss(task, model, batch, shape)
    return total / max(num_labels, 1), sums


def labelled_loss(
    task: Task,
    model: "Bert | FeatureTagger",
    batch: TaskBatch,
    shape: "LabelLoss | None" = None,
) -> "tuple[Tensor, Tensor, Tensor]":
    """The head's outputs [P, L], the summed loss of labels, 0-d, and the sums (SUM_NAMES)."""
    import torch

    outputs = compute_outputs(model, batch)
    if outputs.dtype in (torch.bfloat16, torch.float16):  # what autocast leaves behind
        outputs = outputs.float()
    if shape is None:
        total, correct = task.loss(outputs, batch)
    else:
        total, correct = task.label_loss(outputs, batch, shape)
    ignored = batch.labels.isnan() if batch.labels.is_floating_point() else batch.labels < 0
    known = ~ignored if ignored.ndim == 1 else ~ignored.any(1)
    sums = torch.stack([total.detach().float(), correct.float(), known.sum().float()])
    return outputs, total, sums


def divide_outputs(model: "Bert", divisor: float) -> None:
    """Divides the head's answers by a number, in its last linear map, which must have one.

    So whoever reads the weights has the divided answers and need not know the number.
    """
    import torch

    from bert_core.model.bert import VECTORS

    (head,) = [head for name, head in model.heads.items() if name not in ("pooler", VECTORS)]
    linear = head.get_submodule("linear")
    with torch.no_grad():
        for weight in linear.parameters():
            weight.div_(divisor)


def add_task_head(model: "Bert", task: Task) -> list[str]:
    """Leaves the encoder, and the pooler where the task wants it, and adds the task's own head.

    Returns the heads that were drawn anew, from torch's generator; a head of the right size stays.
    """
    from bert_core.model.bert import VECTORS

    shape = task.head
    poolers = ["pooler"] if reads_pooler(model, task) else []
    drawn = model.add_missing_heads(poolers)  # it may begin as a part of a head that goes
    for name in list(model.heads):
        if name not in (*poolers, shape.name):
            del model.heads[name]
    if shape.reads_mean:
        model.add_task_head(VECTORS, 0)
    return [*drawn, *model.add_task_head(shape.name, shape.num_outputs)]


def reads_pooler(model: "Bert", task: Task) -> bool:
    """Whether the task's head reads states through the encoder's pooler."""
    from bert_core.model.bert import TASK_HEADS

    is_transformed = model.config.transforms_every_state and task.head.name in TASK_HEADS
    return task.head.pooled or is_transformed

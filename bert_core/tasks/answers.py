"""Requests to fine-tuned models and the fields of their answers, over HTTP and offline.

Options become a codec, which encodes examples and decodes outputs. The names of an answer's fields
are those of the HTTP routes.
Shapes: N examples, L labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from bert_core.tasks.classification import Classification, ScoreFunction, Text, outputs_of_examples
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.sequences import Overflow
from bert_core.tasks.task import FloatArray, softmax

_OF_AN_ENTITY = ("type", "text", "start", "end", "start_word", "end_word", "score")


class Codec(Protocol):
    """Encodes examples as rows, and decodes outputs into predictions: a task, or a query to it."""

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of examples."""
        ...

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """A prediction for each example, given the outputs [P, L] of its rows."""
        ...


@dataclass(frozen=True)
class BoundedQuestions:
    """Asks a task questions whose windows have at most `max_tokens`, however much they overlap."""

    task: QuestionAnswering
    max_tokens: int

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of questions; raises `TooManyTokensError` before they are made."""
        return self.task.encode(examples, tokenizer, self.max_tokens)

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """The task's predictions."""
        return self.task.decode(outputs, rows, examples)


def answering(
    task: QuestionAnswering,
    *,
    overflow: Overflow,
    top_k: int = 1,
    max_answer_length: int | None = None,
    align_to_words: bool | None = None,
    null_threshold: float | None = None,
) -> QuestionAnswering:
    """Returns the task with a request's options; None keeps the model's own.

    A null threshold asks for no answer where the null score is above it, also of a model that was
    not taught that there may be none.
    """
    changes: dict[str, Any] = {"overflow": overflow, "n_best": max(task.n_best, top_k)}
    if max_answer_length is not None:
        changes["max_answer_length"] = max_answer_length
    if align_to_words is not None:
        changes["align_to_words"] = align_to_words
    if null_threshold is not None:
        changes |= {"no_answer": True, "null_threshold": null_threshold}
    return task.model_copy(update=changes)


def classified(found: Mapping[str, Any], top_k: int | None = None) -> dict[str, Any]:
    """`label`, `labels` or `value`, and the `top_k` best `scores`, best first; by default all."""
    fields = dict(found)
    if "scores" in fields:
        best = sorted(fields["scores"].items(), key=lambda each: -each[1])[:top_k]
        fields["scores"] = [{"label": label, "score": score} for label, score in best]
    return fields


def tagged(found: Mapping[str, Any]) -> dict[str, Any]:
    """`entities`, from left to right; `start_word` and `end_word` are of those made of words."""
    return {
        "entities": [
            {name: each[name] for name in _OF_AN_ENTITY if name in each}
            for each in found["entities"]
        ]
    }


def answered(found: Mapping[str, Any], top_k: int = 1) -> dict[str, Any]:
    """The `top_k` best `answers`, best first, none where the context holds none; `null_score`."""
    candidates = [each for each in found["n_best"] if each["text"]] if found["text"] else []
    return {"answers": candidates[:top_k], "null_score": found["null_score"]}


@dataclass(frozen=True)
class LabelScores:
    """Asks a model of classification for the scores of all its labels.

    Without a `function` they are what its task has them: shares of one for single labels,
    probabilities of their own for several, the number itself for a regression.
    """

    task: Classification
    function: ScoreFunction | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the outputs; that of a number has the usual name."""
        return self.task.labels or ("LABEL_0",)

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of the task."""
        return self.task.encode(examples, tokenizer)

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Text]
    ) -> list[dict[str, Any]]:
        """`scores` of each example: of each label its own, in the order of the labels."""
        logits = outputs_of_examples(outputs, rows, len(examples)).astype(np.float64)
        match self.function or self.task.score_function:
            case "softmax":
                scores = softmax(logits)
            case "sigmoid":
                scores = 1 / (1 + np.exp(-logits))
            case _:
                scores = logits
        return [{"scores": dict(zip(self.labels, row, strict=True))} for row in scores.tolist()]

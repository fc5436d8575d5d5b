"""What is asked of fine-tuned models about new texts, and what comes back, over HTTP and offline.

Options become a codec; a prediction as its `decode` has it becomes the fields of an answer, ready
for JSON, whose names are those of the HTTP routes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer

from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.task import FloatArray
from bert_core.tasks.windows import Overflow

_OF_AN_ENTITY = ("type", "text", "start", "end", "start_word", "end_word", "score")


class Codec(Protocol):
    """A task, or what is asked of its model: examples become rows, outputs become predictions."""

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
    """The task as it is asked: what is None stays the model's own.

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

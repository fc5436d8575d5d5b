"""Requests to fine-tuned models and the fields of their answers, over HTTP and offline.

Options become a codec, which encodes examples and decodes outputs. The names of an answer's fields
are those of the HTTP routes.
Shapes: N examples, L labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from bert_core.errors import UserError
from bert_core.interface import (
    Aggregation,
    Answered,
    Chosen,
    Classified,
    OverflowOrError,
    Tagged,
)
from bert_core.tasks.classification import Classification, ScoreFunction, Text, outputs_of_examples
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.sequences import Overflow, Side
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task, softmax
from bert_core.tasks.text_tagging import TextTagging

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
    """Asks a task questions whose windows have at most `max_tokens`, however much they overlap.

    They share `overlap` tokens, or begin as far from each other as the task's stride says.
    """

    task: QuestionAnswering
    max_tokens: int
    overlap: int | None = None

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of questions; raises `TooManyTokensError` before they are made."""
        return self.task.encode(examples, tokenizer, self.max_tokens, self.overlap)

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """The task's predictions."""
        return self.task.decode(outputs, rows, examples)


@dataclass(frozen=True)
class CutChoices:
    """Asks a task for choices; where they are too long with their context, a side is cut."""

    task: MultipleChoice
    side: Side

    def encode(self, examples: Sequence[Choices], tokenizer: Tokenizer) -> EncodedRows:
        """The rows of choices."""
        return self.task.encode(examples, tokenizer, self.side)

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Choices]
    ) -> list[dict[str, Any]]:
        """The task's predictions."""
        return self.task.decode(outputs, rows, examples)


def refuse_other_counts(examples: Sequence[Choices]) -> None:
    """Raises `UserError` where an input has more or fewer choices than the first."""
    for number, example in enumerate(examples):
        count, usual = len(example.choices), len(examples[0].choices)
        if count != usual:
            what = f"{count} choices where inputs[0] has {usual}"
            raise UserError(what, f"inputs[{number}]", "pass those in another call")


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


TaskAnswer = Classified | Tagged | Answered | Chosen
"""What a fine-tuned model answers, by its task."""


@dataclass(frozen=True)
class AnswerOptions:
    """Options of a request to a fine-tuned model, as over HTTP; None keeps the model's own.

    - `top_k`, the number of labels, or of different answers to a question
    - `aggregation`, how labels of sub-words become entities
    - `max_answer_length`, in tokens; `align_to_words`; `null_threshold`: see `answering`
    """

    overflow: OverflowOrError = "error"
    top_k: int | None = None
    aggregation: Aggregation | None = None
    max_answer_length: int | None = None
    align_to_words: bool | None = None
    null_threshold: float | None = None

    def without_effect(self, known: Sequence[str]) -> list[str]:
        """The options that are set, though a task has only those that are `known`."""
        names = set(vars(self)) - {"overflow", *known}
        return sorted(name for name in names if getattr(self, name) is not None)


@dataclass(frozen=True)
class Query:
    """A request to a task: its inputs become examples of `codec`, whose predictions get `fields`.

    `read` returns the example of an input as the HTTP routes take it, None for anything else;
    `inputs` says what it takes. `known` are the options that have an effect.
    """

    codec: Codec
    read: Callable[[object], Any]
    inputs: str
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    answer: type[TaskAnswer]
    known: tuple[str, ...] = ()


def query_of(task: Task, options: AnswerOptions) -> Query:
    """Returns the request to a task, of raw texts, with these options.

    A codec cuts texts where the overflow is `error`: refuse those that are `truncated`. Raises
    `UserError` for a task of another kind, and for windows over choices.
    """
    overflow: Overflow = "right" if options.overflow == "error" else options.overflow
    match task:
        case Classification():
            codec = task.model_copy(update={"overflow": overflow})
            fields = partial(classified, top_k=options.top_k)
            reads_pairs, known = task.reads_pairs, () if task.kind == "regression" else ("top_k",)
            read, inputs = partial(_read_text, reads_pairs), _TEXT_INPUTS[reads_pairs]
            return Query(codec, read, inputs, fields, Classified, known)
        case Tagging():
            tagging = TextTagging(task, options.aggregation or "first", overflow)
            return Query(tagging, _read_words, "a text", tagged, Tagged, ("aggregation",))
        case QuestionAnswering():
            asked = answering(
                task,
                overflow=overflow,
                top_k=options.top_k or 1,
                max_answer_length=options.max_answer_length,
                align_to_words=options.align_to_words,
                null_threshold=options.null_threshold,
            )
            fields, inputs = partial(answered, top_k=options.top_k or 1), _QUESTION_INPUTS
            known = ("top_k", "max_answer_length", "align_to_words", "null_threshold")
            return Query(asked, _read_question, inputs, fields, Answered, known)
        case Reranking():
            return query_of(task.of_pairs, options)
        case MultipleChoice():
            if overflow == "window":
                remedy = "pass error, left or right"
                raise UserError("choices are not read in windows", "overflow", remedy)
            return Query(CutChoices(task, overflow), _read_choices, _CHOICE_INPUTS, dict, Chosen)
    raise UserError(
        f"a model of another kind of task, {type(task).__name__}",
        "the model",
        "workflows/evaluate.py --output FILE predicts for tables of its task",
    )


_PAIR = '{"text": …, "text_pair": …}'
_QUESTION_INPUTS, _CHOICE_INPUTS = '{"question": …, "context": …}', '{"context": …, "choices": […]}'
_TEXT_INPUTS = {True: f"a pair {_PAIR}", False: "a text", None: f"a text, or a pair {_PAIR}"}


def _read_text(reads_pairs: bool | None, given: object) -> Text | None:
    match given:
        case str() if reads_pairs is not True:
            return Text(given, None, None)
        case {"text": str(first), "text_pair": str(second)} if reads_pairs is not False:
            return Text(first, second, None)
    return None


def _read_words(given: object) -> str | None:
    return given if isinstance(given, str) else None


def _read_question(given: object) -> Question | None:
    match given:
        case {"question": str(question), "context": str(context)}:
            return Question("", question, context, None)
    return None


def _read_choices(given: object) -> Choices | None:
    match given:
        case {"context": str(context), "choices": [str(), *_] as choices} if all(
            isinstance(choice, str) for choice in choices
        ):
            return Choices(context, tuple(choices), None)
    return None

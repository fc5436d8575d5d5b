"""Predictions beside examples as `Outcome`s: what people read of them, whatever the task.

Predictions and examples of a task go in; for each example its texts, the right answer and the
one that was found come out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bert_core.tasks.classification import Text
from bert_core.tasks.metrics import answer_scores
from bert_core.tasks.multiple_choice import Choices
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tag_schemes import Tags
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.task import Task

BoolArray = npt.NDArray[np.bool_]
Entity = Mapping[str, Any]
"""`type`, words from `start` up to before `end`, their `text`; `score` where a model found it."""

_NOT_TEXTS = ("answer", "where", "columns")


@dataclass(frozen=True)
class Outcome:
    """One example and what a model made of it, ready for JSON.

    `gold` is the right answer, None where it is not known; `correct` says whether `found` is
    right, None where that is not known or answers are numbers. `confidence` is the probability that
    the model gave to `found`, in 0..1, None where it gave none to the whole.
    """

    where: str
    texts: Mapping[str, Any]
    gold: Any
    found: Any
    correct: bool | None
    confidence: float | None
    columns: Mapping[str, Any]

    @property
    def is_number(self) -> bool:
        """Whether the answers are numbers, which are not right or wrong but more or less far off.

        Never of a task that is not known here.
        """
        return isinstance(self.gold, float) and isinstance(self.found, float)


def outcomes(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> list[Outcome]:
    """An `Outcome` for each example.

    Of a task that is not known here `found` is the whole prediction, and `correct` None.
    """
    sentences = [each for each in examples if isinstance(each, TaggedSentence)]
    gold = iter(gold_entities(sentences))
    no_answer = isinstance(task, QuestionAnswering) and task.no_answer
    found = []
    for prediction, example in zip(predictions, examples, strict=True):
        match example:
            case Text():
                found.append(_of_text(example, prediction))
            case Choices():
                found.append(_of_choices(example, prediction))
            case Question():
                found.append(_of_question(example, prediction, no_answer))
            case TaggedSentence():
                found.append(_of_sentence(example, prediction, next(gold)))
            case _:
                found.append(_of_unknown(example, prediction))
    return found


def documents(examples: Sequence[Any]) -> list[str] | None:
    """What each example shares with others, [N]: the context of a question, a sentence's document.

    None where every example stands alone.
    """
    names = []
    for index, example in enumerate(examples):
        match example:
            case Question():
                names.append(example.context)
            case TaggedSentence(document=str(document)):
                names.append(document)
            case _:
                names.append(str(index))
    return names if len(set(names)) < len(names) else None


def correctness(found: Sequence[Outcome]) -> BoolArray | None:
    """Which answers are right, [N]; None where answers are not simply right or wrong."""
    if any(each.correct is None for each in found):
        return None
    return np.array([each.correct for each in found], dtype=bool)


def gold_entities(sentences: Sequence[TaggedSentence]) -> list[list[Entity]]:
    """The entities of each sentence; none where its tags are not known."""
    tags = Tags.of([each.tags or ["O"] * len(each.words) for each in sentences])
    begins, ends, types = tags.entities
    sentence_ends = np.cumsum([len(each.words) for each in sentences], dtype=np.int64)
    sentence = np.searchsorted(sentence_ends, begins, side="right")
    found: list[list[Entity]] = [[] for _ in sentences]
    first_word = np.concatenate([[0], sentence_ends])[sentence]
    table = np.stack([sentence, types, begins - first_word, ends - first_word], axis=1)
    for number, kind, begin, end in table.tolist():
        words = sentences[number].words
        entity = {"type": tags.type_names[kind], "start": begin, "end": end}
        found[number].append(entity | {"text": " ".join(words[begin:end])})
    return found


def spans(entities: Sequence[Entity]) -> set[tuple[str, tuple[int, int]]]:
    """Type, and first word and the word after the last, of each entity."""
    return {(each["type"], (each["start"], each["end"])) for each in entities}


def _of_text(example: Text, prediction: Mapping[str, Any]) -> Outcome:
    gold: Any = example.answer
    correct, confidence = None, None
    if "label" in prediction:
        found = prediction["label"]
        correct = None if gold is None else found == gold
        confidence = prediction["scores"][found]
    elif "labels" in prediction:
        found = list(prediction["labels"])
        gold = None if gold is None else [gold] if isinstance(gold, str) else list(gold)
        correct = None if gold is None else set(gold) == set(found)
    else:
        found = prediction["value"]
    texts = {"first": example.first}
    if example.second is not None:
        texts["second"] = example.second
    return Outcome(example.where, texts, gold, found, correct, confidence, example.columns)


def _of_choices(example: Choices, prediction: Mapping[str, Any]) -> Outcome:
    found = prediction["choice"]
    return Outcome(
        where=example.where,
        texts={"context": example.context, "choices": list(example.choices)},
        gold=example.answer,
        found=found,
        correct=None if example.answer is None else found == example.answer,
        confidence=prediction["scores"][found],
        columns=example.columns,
    )


def _of_question(example: Question, prediction: Mapping[str, Any], no_answer: bool) -> Outcome:
    gold, correct = None, None
    if example.answers is not None:
        gold = list(dict.fromkeys(answer.text for answer in example.answers))
        exact, _ = answer_scores([prediction["text"]], [gold], no_answer=no_answer)
        correct = bool(exact[0])
    return Outcome(
        where=example.where or example.id,
        texts={"question": example.question, "context": example.context},
        gold=gold,
        found=prediction["text"],
        correct=correct,
        confidence=prediction["probability"],
        columns=example.columns,
    )


def _of_sentence(
    example: TaggedSentence, prediction: Mapping[str, Any], gold: list[Entity]
) -> Outcome:
    found = [
        {**each, "text": " ".join(example.words[each["start"] : each["end"]])}
        for each in prediction["entities"]
    ]
    known = example.tags is not None
    return Outcome(
        where=example.where,
        texts={"words": list(example.words)},
        gold=gold if known else None,
        found=found,
        correct=spans(gold) == spans(found) if known else None,
        confidence=None,
        columns=example.columns,
    )


def _of_unknown(example: Any, prediction: Mapping[str, Any]) -> Outcome:  # noqa: ANN401 - any task
    values: dict[str, Any] = {}
    if is_dataclass(example):
        values = {field.name: getattr(example, field.name) for field in fields(example)}
    return Outcome(
        where=str(values.get("where", "")),
        texts={name: value for name, value in values.items() if name not in _NOT_TEXTS},
        gold=values.get("answer"),
        found=dict(prediction),
        correct=None,
        confidence=None,
        columns=values.get("columns", {}),
    )

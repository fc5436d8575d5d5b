"""What an audit finds: out-of-fold predictions go in; ranked judgements come out, and their files.

A judgement is about an example, or about a word of one. Shapes: U judgements, L labels.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.evaluation.decisions import given_labels
from bert_core.evaluation.label_errors import (
    BoolArray,
    FloatArray,
    LabelErrors,
    errors_of_label_sets,
    errors_of_labels,
    in_several_folds,
    judged_labels,
)
from bert_core.evaluation.outcomes import write_predictions
from bert_core.tasks.classification import Classification
from bert_core.tasks.task import Task, softmax
from bert_core.text.rng import IntArray
from workflows.finetuning.splits import TEXTS, WHERE, as_cell, place_of
from workflows.sweeps.folds import JudgedFold, OutOfFold

SUSPECTS, RANKING = "suspects", "ranking"
"""Files among the artifacts: the suspects as .csv and .jsonl, and every example as .jsonl."""
_DIGITS = 6

Label = str | list[str]
"""A label, or several."""


@dataclass(frozen=True)
class Judgement:
    """A given label against what a model says that has not seen it.

    `example` is the number of the example, `where` its place in its file, `word` the number of the
    word there, from 1, and `token` the word itself, where labels are of words. Probabilities are
    out of fold; of several labels they are those of the least probable decision. `quality` is
    cleanlab's score.
    """

    example: int
    where: str
    texts: Sequence[str]
    label: Label
    suggested: Label
    label_probability: float
    suggested_probability: float
    quality: float
    fold: int
    is_suspect: bool
    word: int | None = None
    token: str = ""

    def record(self, rank: int) -> dict[str, Any]:
        """The columns of its files."""
        of_word = {} if self.word is None else {"word": self.word, "token": self.token}
        return {
            "rank": rank,
            WHERE: place_of(self.where),
            **dict(zip(TEXTS, self.texts, strict=False)),
            **of_word,
            "label": self.label,
            "suggested_label": self.suggested,
            "label_probability": round(self.label_probability, _DIGITS),
            "suggested_probability": round(self.suggested_probability, _DIGITS),
            "label_quality": round(self.quality, _DIGITS),
            "fold": self.fold,
        }


@dataclass(frozen=True)
class AuditFindings:
    """The judgements of an audit, the most suspect first, one for each example or for each word.

    `unjudged` counts what has a label that no model which judges it has learned, by the label.
    """

    task: Task
    errors: LabelErrors
    judgements: Sequence[Judgement]
    num_examples: int
    unjudged: Mapping[str, int]

    @property
    def suspects(self) -> list[Judgement]:
        """Those that cleanlab takes for errors."""
        return [each for each in self.judgements if each.is_suspect]

    @property
    def num_suspect_examples(self) -> int:
        """The examples that have a suspect."""
        return len({each.example for each in self.suspects})

    @property
    def unit(self) -> str:
        """What is judged: `example` or `word`."""
        return "example" if isinstance(self.task, Classification) else "word"

    def write(self, folder: Path) -> None:
        """Writes the suspects, and the worst judgement of each example."""
        folder.mkdir(parents=True, exist_ok=True)
        records = [each.record(rank) for rank, each in enumerate(self.suspects, start=1)]
        names = list(self.judgements[0].record(1))
        write_csv(records, names, folder / f"{SUSPECTS}.csv")
        write_predictions(records, folder / f"{SUSPECTS}.jsonl")
        worst = {each.example: each for each in reversed(self.judgements)}
        ranked = [each for each in self.judgements if worst[each.example] is each]
        ranking = [
            each.record(rank) | {"suspect": each.is_suspect}
            for rank, each in enumerate(ranked, start=1)
        ]
        write_predictions(ranking, folder / f"{RANKING}.jsonl")


def write_csv(records: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> None:
    """Writes records atomically; texts as `as_cell` has them, several labels as JSON."""
    with atomic_write(path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for record in records:
            writer.writerow([_cell(record[name]) for name in names])


def _cell(value: Any) -> Any:  # noqa: ANN401 - a text, labels or a number
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return as_cell(value) if isinstance(value, str) else value


def audit_findings(found: OutOfFold, folds: Sequence[JudgedFold]) -> AuditFindings:
    """Judges every training example; `folds` are those of `found`, in their order."""
    task = found.task
    if not isinstance(task, Classification):
        errors, judgements, unjudged = _of_words(found, folds)
    elif task.kind == "multiple":
        errors, judgements, unjudged = _of_label_sets(found, task)
    else:
        errors, judgements, unjudged = _of_labels(found, task)
    ranked = [judgements[unit] for unit in errors.order.tolist()]
    return AuditFindings(task, errors, ranked, len(found.examples), unjudged)


_Found = tuple[LabelErrors, list[Judgement], dict[str, int]]
"""Errors, their judgements, and how many are not judged, by their label."""


def _of_labels(found: OutOfFold, task: Task) -> _Found:
    number = {name: index for index, name in enumerate(task.labels)}
    labels = np.array([number[str(each.answer)] for each in found.examples], dtype=np.int64)
    units, unjudged = _judged(labels, np.asarray(found.fold), task.labels)
    labels, probabilities = labels[units], _scores(found, task)[units]
    errors = errors_of_labels(labels, probabilities, task.labels)
    judgements = _judgements(errors, labels, probabilities, task.labels)
    places = [(unit, found.examples[unit], found.fold[unit]) for unit in units.tolist()]
    return (
        errors,
        [
            replace(each, example=unit, where=example.where, texts=task.texts(example), fold=fold)
            for each, (unit, example, fold) in zip(judgements, places, strict=True)
        ],
        unjudged,
    )


def _judged(
    labels: IntArray, fold: IntArray, names: Sequence[str]
) -> tuple[IntArray, dict[str, int]]:
    """The units that can be judged, and how many others there are, by their label.

    Raises `UserError` where what can be judged has fewer than two labels.
    """
    is_judged = in_several_folds(labels, fold, len(names))
    if is_judged.sum() < 2:
        what = "fewer than two labels that examples of several folds have"
        raise UserError(what, "the training examples", "give more examples of each label")
    counts = np.bincount(labels, minlength=len(names))
    others = np.flatnonzero((counts > 0) & ~is_judged).tolist()
    return np.flatnonzero(is_judged[labels]), {names[n]: int(counts[n]) for n in others}


def _of_label_sets(found: OutOfFold, task: Classification) -> _Found:
    given = given_labels(task, found.examples)
    probabilities, judged = _scores(found, task), judged_labels(given, np.asarray(found.fold))
    errors = errors_of_label_sets(given, probabilities, task.labels, judged)
    counts = given.sum(axis=0)
    others = np.setdiff1d(np.flatnonzero(counts), judged).tolist()
    unjudged = {task.labels[n]: int(counts[n]) for n in others}
    judgements = []
    for unit, (example, fold) in enumerate(zip(found.examples, found.fold, strict=True)):
        own, suggested = given[unit], np.isin(np.arange(given.shape[1]), errors.suggested[unit])
        judgements.append(
            Judgement(
                example=unit,
                where=example.where,
                texts=task.texts(example),
                label=_named(own, task.labels),
                suggested=_named(suggested, task.labels),
                label_probability=_least(own, probabilities[unit]),
                suggested_probability=_least(suggested, probabilities[unit]),
                quality=float(errors.quality[unit]),
                fold=fold,
                is_suspect=bool(errors.suspects[unit]),
            )
        )
    return errors, judgements, unjudged


def _named(chosen: BoolArray, names: Sequence[str]) -> list[str]:
    return [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]


def _least(chosen: BoolArray, probabilities: FloatArray) -> float:
    """The probability of the least probable decision: that a label is there, or that it is not."""
    return float(np.where(chosen, probabilities, 1 - probabilities).min())


def _scores(found: OutOfFold, task: Task) -> FloatArray:
    scores = [each["scores"] for each in found.predictions]
    return np.array([[each[name] for name in task.labels] for each in scores], dtype=np.float64)


def _of_words(found: OutOfFold, folds: Sequence[JudgedFold]) -> _Found:
    """Words without a token, and those that were truncated, are not judged."""
    names = found.task.labels
    labels: list[IntArray] = []
    probabilities: list[FloatArray] = []
    fold_of_word: list[int] = []
    words: list[tuple[int, int]] = []
    first = 0
    for fold in folds:
        rows, examples = fold.data.dev.rows, fold.data.dev.examples
        known = np.flatnonzero(rows.labels >= 0)
        labels.append(rows.labels[known].astype(np.int64))
        probabilities.append(softmax(fold.outputs[known]))
        fold_of_word += [fold.number] * len(known)
        ends = np.cumsum([len(each.words) for each in examples])
        places = rows.notes["words"][known]
        sentences = np.searchsorted(ends, places, side="right")
        for place, number in zip(places.tolist(), sentences.tolist(), strict=True):
            begin = int(ends[number]) - len(examples[number].words)
            words.append((first + number, place - begin))
        first += len(examples)
    given, probable = np.concatenate(labels), np.concatenate(probabilities)
    units, unjudged = _judged(given, np.asarray(fold_of_word), names)
    errors = errors_of_labels(given[units], probable[units], names)
    judgements = _judgements(errors, given[units], probable[units], names)
    texts = [found.task.texts(sentence) for sentence in found.examples]
    places = [words[unit] for unit in units.tolist()]
    return (
        errors,
        [
            replace(
                each,
                example=number,
                where=found.examples[number].where,
                texts=texts[number],
                word=word + 1,
                token=found.examples[number].words[word],
                fold=found.fold[number],
            )
            for each, (number, word) in zip(judgements, places, strict=True)
        ],
        unjudged,
    )


def _judgements(
    errors: LabelErrors, labels: IntArray, probabilities: FloatArray, names: Sequence[str]
) -> list[Judgement]:
    """Those of one label each, without their places."""
    return [
        Judgement(
            example=0,
            where="",
            texts=(),
            label=names[int(label)],
            suggested=names[errors.suggested[unit][0]],
            label_probability=float(probabilities[unit, label]),
            suggested_probability=float(probabilities[unit].max()),
            quality=float(errors.quality[unit]),
            fold=0,
            is_suspect=bool(errors.suspects[unit]),
        )
        for unit, label in enumerate(labels)
    ]

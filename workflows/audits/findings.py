"""What an audit finds: out-of-fold predictions go in; ranked judgements come out, and their files.

A judgement is about an example, or about a word of one. Shapes: U judgements, L labels.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_core.disk import atomic_write
from bert_core.evaluation.label_errors import (
    BoolArray,
    FloatArray,
    LabelErrors,
    errors_of_label_sets,
    errors_of_labels,
)
from bert_core.tasks.classification import Classification, Text
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
    """The judgements of an audit, the most suspect first, one for each example or for each word."""

    task: Task
    errors: LabelErrors
    judgements: Sequence[Judgement]
    num_examples: int

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
        write_jsonl(records, folder / f"{SUSPECTS}.jsonl")
        worst = {each.example: each for each in reversed(self.judgements)}
        ranked = [each for each in self.judgements if worst[each.example] is each]
        write_jsonl(
            (
                each.record(rank) | {"suspect": each.is_suspect}
                for rank, each in enumerate(ranked, start=1)
            ),
            folder / f"{RANKING}.jsonl",
        )


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


def write_jsonl(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes a record a line, atomically."""
    with atomic_write(path) as beside, beside.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def audit_findings(found: OutOfFold, folds: Sequence[JudgedFold]) -> AuditFindings:
    """Judges every training example; `folds` are those of `found`, in their order."""
    task = found.task
    if not isinstance(task, Classification):
        errors, judgements = _of_words(found, folds)
    elif task.kind == "multiple":
        errors, judgements = _of_label_sets(found, task)
    else:
        errors, judgements = _of_labels(found, task)
    order = errors.order.tolist()
    return AuditFindings(task, errors, [judgements[unit] for unit in order], len(found.examples))


def _of_labels(found: OutOfFold, task: Task) -> tuple[LabelErrors, list[Judgement]]:
    number = {name: index for index, name in enumerate(task.labels)}
    labels = np.array([number[str(each.answer)] for each in found.examples], dtype=np.int64)
    probabilities = _scores(found, task)
    errors = errors_of_labels(labels, probabilities, task.labels)
    judgements = _judgements(errors, labels, probabilities, task.labels)
    return errors, [
        replace(each, example=unit, where=example.where, texts=task.texts(example), fold=fold)
        for unit, (each, example, fold) in enumerate(
            zip(judgements, found.examples, found.fold, strict=True)
        )
    ]


def _of_label_sets(found: OutOfFold, task: Task) -> tuple[LabelErrors, list[Judgement]]:
    given = given_labels(task, found.examples)
    probabilities = _scores(found, task)
    errors = errors_of_label_sets(given, probabilities, task.labels)
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
    return errors, judgements


def given_labels(task: Task, examples: Sequence[Text]) -> BoolArray:
    """Which labels each example has, [N, L]."""
    sets = [{*(task.label_names([example]) or ())} for example in examples]
    return np.array([[name in each for name in task.labels] for each in sets], dtype=bool)


def _named(chosen: BoolArray, names: Sequence[str]) -> list[str]:
    return [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]


def _least(chosen: BoolArray, probabilities: FloatArray) -> float:
    """The probability of the least probable decision: that a label is there, or that it is not."""
    return float(np.where(chosen, probabilities, 1 - probabilities).min())


def _scores(found: OutOfFold, task: Task) -> FloatArray:
    scores = [each["scores"] for each in found.predictions]
    return np.array([[each[name] for name in task.labels] for each in scores], dtype=np.float64)


def _of_words(found: OutOfFold, folds: Sequence[JudgedFold]) -> tuple[LabelErrors, list[Judgement]]:
    """Words without a token, and those that were truncated, are not judged."""
    names = found.task.labels
    labels: list[IntArray] = []
    probabilities: list[FloatArray] = []
    words: list[tuple[int, int]] = []
    first = 0
    for fold in folds:
        rows, examples = fold.data.dev.rows, fold.data.dev.examples
        known = np.flatnonzero(rows.labels >= 0)
        labels.append(rows.labels[known].astype(np.int64))
        probabilities.append(softmax(fold.outputs[known]))
        ends = np.cumsum([len(each.words) for each in examples])
        places = rows.notes["words"][known]
        sentences = np.searchsorted(ends, places, side="right")
        for place, number in zip(places.tolist(), sentences.tolist(), strict=True):
            begin = int(ends[number]) - len(examples[number].words)
            words.append((first + number, place - begin))
        first += len(examples)
    given, probable = np.concatenate(labels), np.concatenate(probabilities)
    errors = errors_of_labels(given, probable, names)
    judgements = _judgements(errors, given, probable, names)
    texts = [found.task.texts(sentence) for sentence in found.examples]
    return errors, [
        replace(
            each,
            example=number,
            where=found.examples[number].where,
            texts=texts[number],
            word=word + 1,
            token=found.examples[number].words[word],
            fold=found.fold[number],
        )
        for each, (number, word) in zip(judgements, words, strict=True)
    ]


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

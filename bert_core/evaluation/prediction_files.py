"""Predictions with their examples as a JSONL or Parquet file, a record each, and back.

Also as the files that the scorers of the tasks read: SQuAD's JSON, CoNLL's columns.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.disk import written_whole
from bert_core.errors import UserError
from bert_core.evaluation.outcomes import outcomes
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tables import read_table
from bert_core.tasks.tag_schemes import Tags
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".jsonl", ".parquet")

SCORED = {".json": QuestionAnswering, ".conll": Tagging, ".txt": Tagging}
"""The endings of files for scorers, and the tasks that have such a file."""


def refuse_unknown_file(path: Path, task: Task | None = None) -> None:
    """Raises `UserError` for a file of an ending that no predictions, or not the task's, have."""
    if path.suffix in SUFFIXES:
        return
    if path.suffix not in SCORED:
        known = ", ".join([*SUFFIXES, ".json (SQuAD's)", ".conll, .txt (CoNLL's)"])
        raise UserError("unknown kind of file", f"--output {path}", f"use {known}")
    if task is not None and not isinstance(task, SCORED[path.suffix]):
        kind = "questions" if path.suffix == ".json" else "tags"
        raise UserError(
            f"{path.suffix} is for {kind}", f"--output {path}", f"use {' or '.join(SUFFIXES)}"
        )


def write_for_scorers(
    predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any], path: Path
) -> None:
    """Writes what the scorer of a task reads, whole or not at all.

    Of questions SQuAD's JSON, answers by id, empty where there is none. Of words CoNLL's lines: the
    word, its right tag where all examples have tags, and the tag found; both in the scheme of the
    data, `_` for a space within a word. Raises `UserError` for two questions of one id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_squad = path.suffix == ".json"
    text = (_squad_json if is_squad else _conll_lines)(predictions, examples)
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _squad_json(predictions: Sequence[Mapping[str, Any]], questions: Sequence[Question]) -> str:
    answers: dict[str, str] = {}
    for prediction, question in zip(predictions, questions, strict=True):
        if question.id in answers:
            remedy = "give each question an id of its own, or write .jsonl"
            raise UserError(f"two questions of the id {question.id}", question.where, remedy)
        answers[question.id] = prediction["text"]
    return json.dumps(answers, ensure_ascii=False) + "\n"


def _conll_lines(
    predictions: Sequence[Mapping[str, Any]], sentences: Sequence[TaggedSentence]
) -> str:
    has_gold = all(each.tags is not None for each in sentences)
    lines: list[str] = []
    for prediction, sentence in zip(predictions, sentences, strict=True):
        columns = [["_".join(word.split()) or "_" for word in sentence.words], prediction["tags"]]
        if has_gold and sentence.tags is not None:
            columns.insert(1, _in_its_scheme(sentence.tags, sentence))
        lines += [" ".join(cells) for cells in zip(*columns, strict=True)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _in_its_scheme(tags: Sequence[str], sentence: TaggedSentence) -> Sequence[str]:
    return Tags.of([tags]).strings(sentence.scheme) if sentence.scheme else tags


def prediction_records(
    task: Task, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> list[dict[str, Any]]:
    """For each example the fields of its `Outcome`, and the whole `prediction`."""
    results = outcomes(task, predictions, examples)
    return [
        asdict(result) | {"prediction": dict(prediction)}
        for result, prediction in zip(results, predictions, strict=True)
    ]


def write_predictions(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes records beside `path` and renames them; its ending, .jsonl or .parquet, decides.

    Raises `UserError` for another ending.
    """
    if path.suffix not in SUFFIXES:
        raise UserError("unknown kind of file", str(path), f"use one of {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as beside:
        if path.suffix == ".jsonl":
            with beside.open("w", encoding="utf-8") as file:
                for record in records:
                    file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
        else:
            _write_parquet(records, beside)


def read_predictions(path: Path, task: Task, examples: Sequence[Any]) -> list[dict[str, Any]]:
    """The predictions of such a file, to compare a model with an earlier one.

    Raises `UserError` where they were made for other examples.
    """
    predictions = []
    records = list(read_table(path))
    if len(records) != len(examples):
        raise UserError(
            f"{len(records)} predictions for {len(examples)} examples",
            str(path),
            "compare on the same data",
        )
    for record in records:
        if not {"texts", "prediction"} <= set(record.values):
            raise UserError("not a file of predictions", record.where, "write it with evaluate.py")
        predictions.append(record.values["prediction"])
    results = outcomes(task, predictions, examples)
    for record, result in zip(records, results, strict=True):
        texts = {name: text for name, text in record.values["texts"].items() if text is not None}
        if texts != result.texts:
            raise UserError("a prediction for another text", record.where, result.where)
    return predictions


def _write_parquet(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    # Parquet has no structs without fields.
    kept = {name: values for name, values in columns.items() if any(each != {} for each in values)}
    pq.write_table(pa.table({name: _array(values) for name, values in kept.items()}), path)


def _array(values: Sequence[Any]) -> "pa.Array":
    """Typed where all values are of one type, else each as JSON."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([json.dumps(each, ensure_ascii=False, default=str) for each in values])

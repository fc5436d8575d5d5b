"""One `Outcome` per example (its texts, the right answer, the prediction), and prediction files.

Prediction files are JSONL or Parquet, one record per example, and can be read back. Files for
official scorers are JSON for SQuAD and columns for CoNLL.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_core.disk import atomic_write, finite, write_atomically
from bert_core.errors import UserError
from bert_core.tasks.classification import Text
from bert_core.tasks.metrics import answer_scores
from bert_core.tasks.multiple_choice import Choices
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tables import read_table
from bert_core.tasks.tag_schemes import Tags
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Predictions, Task
from bert_core.tasks.text_embedding import RelatedTexts

if TYPE_CHECKING:
    import pyarrow as pa

BoolArray = npt.NDArray[np.bool_]
Entity = Mapping[str, Any]
"""`type`, words from `start` up to before `end`, their `text`; `score` where a model found it."""

_NOT_TEXTS = ("answer", "where", "columns")


@dataclass(frozen=True)
class Outcome:
    """One example and its prediction, ready for JSON.

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
        """Whether the answers are numbers, which are close or far off instead of right or wrong.

        False for unknown tasks.
        """
        return isinstance(self.gold, float) and isinstance(self.found, float)


def outcomes(task: Task, predictions: Predictions, examples: Sequence[Any]) -> list[Outcome]:
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
            case RelatedTexts():
                found.append(_of_related(example, prediction))
            case _:
                found.append(_of_unknown(example, prediction))
    return found


def documents(examples: Sequence[Any]) -> list[str] | None:
    """The document of each example, [N]: the context of a question, the document of a sentence.

    None if every example has its own.
    """
    return _shared([_document(example) for example in examples])


def resampling_units(examples: Sequence[Any]) -> list[str] | None:
    """What is drawn as one for an interval, [N]: a document, or a query with all its passages.

    Errors within one are correlated, and the metrics of search are means over queries. None if
    every example stands alone.
    """
    names = []
    for example in examples:
        match example:
            case RelatedTexts(texts=(query, _, *_), answer=True):
                names.append(query)
            case _:
                names.append(_document(example))
    return _shared(names)


def _document(example: object) -> str | None:
    match example:
        case Question():
            return example.context
        case TaggedSentence():
            return example.document
        case _:
            return None


def _shared(names: Sequence[str | None]) -> list[str] | None:
    """The names, those missing made unlike all others; None if no two are alike."""
    given = [str(index) if name is None else name for index, name in enumerate(names)]
    return given if len(set(given)) < len(given) else None


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
    return {(entity["type"], (entity["start"], entity["end"])) for entity in entities}


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


def _of_related(example: RelatedTexts, prediction: Mapping[str, Any]) -> Outcome:
    """A query is answered right where its passage is the first; of scores there is no right."""
    gold: Any = example.answer
    found: Any = prediction["value"]
    correct = None
    if "rank" in prediction:
        gold, found, correct = example.texts[1], prediction["nearest"], prediction["rank"] == 1
    elif "label" in prediction:
        found = prediction["label"]
        correct = None if gold is None else found == gold
    texts = {"first": example.texts[0]}
    if len(example.texts) > 1 and "rank" not in prediction:
        texts["second"] = example.texts[1]
    return Outcome(example.where, texts, gold, found, correct, None, example.columns)


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


def write_for_scorers(predictions: Predictions, examples: Sequence[Any], path: Path) -> None:
    """Writes what the scorer of a task reads, whole or not at all.

    Of questions SQuAD's JSON, answers by id, empty where there is none. Of words CoNLL's lines: the
    word, its right tag where all examples have tags, and the tag found; both in the scheme of the
    data, `_` for a space within a word. Raises `UserError` for two questions of one id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_squad = path.suffix == ".json"
    text = (_squad_json if is_squad else _conll_lines)(predictions, examples)
    write_atomically(path, text)


def _squad_json(predictions: Predictions, questions: Sequence[Question]) -> str:
    answers: dict[str, str] = {}
    for prediction, question in zip(predictions, questions, strict=True):
        if question.id in answers:
            remedy = "give each question an id of its own, or write .jsonl"
            raise UserError(f"two questions of the id {question.id}", question.where, remedy)
        answers[question.id] = prediction["text"]
    return json.dumps(answers, ensure_ascii=False) + "\n"


def _conll_lines(predictions: Predictions, sentences: Sequence[TaggedSentence]) -> str:
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
    task: Task, predictions: Predictions, examples: Sequence[Any]
) -> list[dict[str, Any]]:
    """For each example the fields of its `Outcome`, and the whole `prediction`."""
    results = outcomes(task, predictions, examples)
    return [
        asdict(result) | {"prediction": dict(prediction)}
        for result, prediction in zip(results, predictions, strict=True)
    ]


def write_predictions(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes records to a .jsonl or .parquet file, atomically.

    Raises `UserError` for another ending.
    """
    if path.suffix not in SUFFIXES:
        raise UserError("unknown kind of file", str(path), f"use one of {', '.join(SUFFIXES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        if path.suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8") as file:
                for record in records:
                    file.write(_json_text(record) + "\n")
        else:
            _write_parquet(records, temporary)


def read_predictions(
    path: Path, task: Task, examples: Sequence[Any], own: Predictions
) -> list[dict[str, Any]]:
    """The predictions of such a file, to compare a model with an earlier one.

    Raises `UserError` where they were made for other examples, and where they are answers to
    another question than the model's `own` predictions.
    """
    predictions = []
    records = list(read_table(path))
    if len(records) != len(examples):
        raise UserError(
            f"{len(records)} predictions for {len(examples)} examples",
            str(path),
            "compare on the same data",
        )
    for record, mine in zip(records, own, strict=True):
        if not {"texts", "prediction"} <= set(record.values):
            raise UserError("not a file of predictions", record.where, "write it with evaluate.py")
        prediction = record.values["prediction"]
        if not isinstance(prediction, Mapping) or not mine.keys() <= prediction.keys():
            what = f"not a prediction of {', '.join(mine)}"
            raise UserError(what, record.where, "compare models of one task and kind")
        if _labels_of(prediction) != _labels_of(mine):
            what = "a prediction of other labels than the model's"
            raise UserError(what, record.where, "compare models of the same labels")
        predictions.append(prediction)
    results = outcomes(task, predictions, examples)
    for record, result in zip(records, results, strict=True):
        texts = {name: text for name, text in record.values["texts"].items() if text is not None}
        if texts != result.texts:
            raise UserError("a prediction for another text", record.where, result.where)
    return predictions


def _labels_of(prediction: Mapping[str, Any]) -> set[str] | None:
    """The labels that a prediction has scores of, if it has some by label."""
    scores = prediction.get("scores")
    return {*scores} if isinstance(scores, Mapping) else None


def _write_parquet(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    # Parquet has no structs without fields.
    kept = {
        name: values for name, values in columns.items() if any(value != {} for value in values)
    }
    pq.write_table(pa.table({name: _array(values) for name, values in kept.items()}), path)


def _array(values: Sequence[Any]) -> "pa.Array":
    """Typed where all values are of one type that Parquet has, else each as JSON."""
    import pyarrow as pa

    try:
        found = pa.array(values)
        if "struct<>" not in str(found.type):
            return found
    except (pa.ArrowException, OverflowError):  # such as an integer of more than 64 bits
        pass
    return pa.array(map(_json_text, values))


def _json_text(value: Any) -> str:  # noqa: ANN401 - whatever a record holds
    return json.dumps(finite(value), ensure_ascii=False, default=str)

"""Predictions for texts: what is asked of a model, the job that writes each part, and its files."""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.predictor import Predictor, load_predictor
from bert_core.tasks.answers import AnswerOptions, query_of
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.text.texts import NamedTexts, TextPart, read_records, text_chunks
from workflows.inference.predict_settings import PredictionFormat, PredictSettings
from workflows.inference.text_parts import TextJob, worker_device

if TYPE_CHECKING:
    import pyarrow as pa

PREDICTIONS = "predictions"
"""The folder of the parts."""


Kind = Literal["label", "labels", "value", "entities", "answers"]
"""What a model gives, by the name of the field."""

_KINDS: dict[str, Kind] = {"single": "label", "multiple": "labels", "regression": "value"}

_WORDS_FOR: dict[Kind, str] = {
    "label": "labels",
    "labels": "several labels",
    "value": "numbers",
    "entities": "entities",
    "answers": "answers to questions",
}

_OPTIONS: dict[str, tuple[Kind, ...]] = {
    "text_column": ("label", "labels", "value", "entities"),
    "text_pair_column": ("label", "labels", "value"),
    "question_column": ("answers",),
    "context_column": ("answers",),
    "top_k": ("label", "labels", "answers"),
    "aggregation": ("entities",),
    "max_answer_length": ("answers",),
    "align_to_words": ("answers",),
    "null_threshold": ("answers",),
}
"""The options that say something to some models only."""

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class PredictionRequest:
    """What is asked of a model, as over HTTP; `columns` are those of the texts, by option."""

    kind: Kind
    columns: dict[str, str]
    options: AnswerOptions

    def takes(self, record: NamedTexts) -> bool:
        """Whether a record's texts are what the model reads: words are for entities alone."""
        return self.kind == "entities" or all(isinstance(text, str) for text in record.texts)

    def examples(self, records: Sequence[NamedTexts]) -> list[Any]:
        """The records as the codec has them."""
        if self.kind == "entities":
            return [record.texts[0] for record in records]
        texts = [[str(text) for text in record.texts] for record in records]
        if self.kind == "answers":
            return [Question("", question, context, None) for context, question in texts]
        return [Text(first, second[0] if second else None, None) for first, *second in texts]


def request_of(settings: PredictSettings, predictor: Predictor) -> PredictionRequest:
    """What the settings ask of this model.

    Raises `UserError` for a model of another kind than those there are here, and for settings that
    say nothing to it.
    """
    task = predictor.task
    task = task.of_pairs if isinstance(task, Reranking) else task
    kind = _kind_of(task, settings.model)
    for name, kinds in _OPTIONS.items():
        if name in settings.model_fields_set and kind not in kinds:
            what = f"says nothing to a model that gives {_WORDS_FOR[kind]}"
            raise UserError(what, f"--{name}", "leave it out")
    is_lstm = FEATURE_TAGGER in predictor.model.heads
    if is_lstm and settings.aggregation != "first":
        what = f"{settings.model} was trained on the first sub-word of each word"
        raise UserError(what, f"--aggregation {settings.aggregation}", "leave it out")
    return PredictionRequest(
        kind=kind,
        columns=_columns(settings, task),
        options=AnswerOptions(
            overflow=settings.overflow,
            top_k=settings.top_k,
            aggregation=settings.aggregation,
            max_answer_length=settings.max_answer_length,
            align_to_words=settings.align_to_words,
            null_threshold=settings.null_threshold,
        ),
    )


def _kind_of(task: Task, model: str) -> Kind:
    if isinstance(task, Classification):
        return _KINDS[task.kind]
    if isinstance(task, Tagging):
        return "entities"
    if isinstance(task, QuestionAnswering):
        return "answers"
    if isinstance(task, TextEmbedding):
        how = "embed_sparse of bert_core.load(MODEL)" if task.is_sparse else "workflows/extract.py"
        raise UserError("a model of embeddings", model, f"{how} gives vectors")
    raise UserError(
        f"a model of another kind of task, {type(task).__name__}",
        model,
        "workflows/evaluate.py --output FILE predicts for tables of its task",
    )


def _columns(settings: PredictSettings, task: Task) -> dict[str, str]:
    """The columns of the texts by option; of questions the contexts, which are longer, first."""
    if isinstance(task, QuestionAnswering):
        return {
            "context_column": settings.context_column,
            "question_column": settings.question_column,
        }
    columns = {"text_column": settings.text_column}
    pairs = task.reads_pairs if isinstance(task, Classification) else False
    if pairs or (pairs is None and settings.text_pair_column is not None):
        columns["text_pair_column"] = settings.text_pair_column or "text_pair"
    elif settings.text_pair_column is not None:
        what = f"{settings.model} reads single texts"
        raise UserError(what, f"--text_pair_column {settings.text_pair_column}", "leave it out")
    return columns


@dataclass(frozen=True)
class Prediction(TextJob):
    """What is to be predicted, and how; `task_name` as for `load_predictor`."""

    folder: ClassVar[str] = PREDICTIONS
    label: ClassVar[str] = "predicting"

    task_name: str | None
    request: PredictionRequest
    output_format: PredictionFormat

    def write(self, part: TextPart, stem: Path, dropped: Counter[str]) -> dict[str, Any]:
        """Writes the predictions of a part; the record has what a `Tally` has."""
        predictor = _predictor(self.model, self.task_name, self.max_tokens, self.bfloat16)
        tally = Tally(self.request.kind)
        path = stem.with_suffix(f".{self.output_format}")
        columns = self.request.columns
        records = read_records(part, dropped, columns, id_column=self.id_column)
        with prediction_file(path, self.output_format, self.request.kind) as write:
            for some in text_chunks(self._taken(records, dropped), _num_characters):
                rows, encoded = self._predict(predictor, some)
                write(rows)
                tally.count(rows, encoded)
        return {"counts": dict(tally.counts), "found": dict(tally.found), "values": tally.values}

    def _taken(self, records: Iterable[NamedTexts], dropped: Counter[str]) -> Iterator[NamedTexts]:
        for record in records:
            if self.request.takes(record):
                yield record
            else:
                dropped["records_of_words"] += 1

    def _predict(
        self, predictor: Predictor, records: list[NamedTexts]
    ) -> tuple[list[dict[str, Any]], EncodedRows]:
        query = query_of(predictor.task, self.request.options)
        examples = self.request.examples(records)
        encoded = query.codec.encode(examples, predictor.tokenizer)
        if self.request.options.overflow == "error" and encoded.truncated.any():
            number = int(encoded.truncated.argmax())
            raise UserError(
                encoded.excess(number),
                records[number].id,
                "shorten it, or set --overflow to window, right or left",
            )
        found = predictor.answer(query.codec, encoded, examples)
        read = zip(records, encoded.num_tokens.tolist(), encoded.truncated.tolist(), strict=True)
        return [
            {"id": record.id, "n_tokens": count, "truncated": cut, **query.fields(each)}
            for (record, count, cut), each in zip(read, found, strict=True)
        ], encoded


@dataclass
class Tally:
    """What there was to count in a part.

    - `counts`: texts, tokens before any cut, texts that are truncated, `windows`, those of long
      texts beyond the first, and texts with something `found` in them
    - `found`: how often each label was given, each type of entity found
    - `values`: the smallest number, the largest, and the sum; None where none is given
    """

    kind: Kind
    counts: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    values: list[float] | None = None

    def count(self, rows: list[dict[str, Any]], encoded: EncodedRows) -> None:
        """Counts some rows of the result, and the rows of the encoder they come from."""
        windows = np.bincount(encoded.example, minlength=len(rows)) - 1
        self.counts += Counter(
            texts=len(rows),
            tokens=int(encoded.num_tokens.sum()),
            truncated=encoded.num_truncated,
            windows=int(windows.clip(min=0).sum()),
        )
        for row in rows:
            names = self._names(row)
            self.found.update(names)
            self.counts["found"] += bool(names)
        if self.kind == "value":
            values = [row["value"] for row in rows]
            low, high, total = self.values or (values[0], values[0], 0.0)
            self.values = [min(low, *values), max(high, *values), total + sum(values)]

    def _names(self, row: dict[str, Any]) -> list[str]:
        """What is counted of a row."""
        if self.kind == "label":
            return [row["label"]]
        if self.kind == "entities":
            return [each["type"] for each in row["entities"]]
        if self.kind == "labels":
            return row["labels"]
        return ["answer"] * bool(row["answers"]) if self.kind == "answers" else []


@functools.lru_cache(maxsize=1)
def _predictor(model: Path, task_name: str | None, max_tokens: int, bfloat16: bool) -> Predictor:
    return load_predictor(
        model,
        device=worker_device(),
        dtype="bfloat16" if bfloat16 else "float32",
        task_name=task_name,
        max_tokens=max_tokens,
    )


def _num_characters(record: NamedTexts) -> int:
    return sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in record.texts)


@contextmanager
def prediction_file(
    path: Path, output_format: PredictionFormat, kind: Kind
) -> Iterator[Callable[[Rows], None]]:
    """Opens a file for the rows of a kind of model, and gives what writes some of them.

    A row has `id`, `n_tokens`, `truncated` and the fields of the kind. The file has its name when
    the block ends, and is gone if it ends in an error.
    """
    with atomic_write(path) as beside:
        opened = _jsonl(beside) if output_format == "jsonl" else _parquet(beside, kind)
        with opened as write:
            yield write


@contextmanager
def _jsonl(path: Path) -> Iterator[Callable[[Rows], None]]:
    with path.open("w", encoding="utf-8") as file:

        def write(rows: Rows) -> None:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

        yield write


@contextmanager
def _parquet(path: Path, kind: Kind) -> Iterator[Callable[[Rows], None]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = schema_of(kind)
    with ParquetWriter(path, schema) as writer:

        def write(rows: Rows) -> None:
            writer.write_table(pa.Table.from_pylist(list(rows), schema=schema))

        yield write


def schema_of(kind: Kind) -> "pa.Schema":
    """The columns of the Parquet files of a kind of model."""
    import pyarrow as pa

    text, number, place = pa.string(), pa.float64(), pa.int64()
    scores = pa.list_(pa.struct({"label": text, "score": number}))
    characters = {"text": text, "start": place, "end": place}
    words = {"start_word": place, "end_word": place}
    fields: dict[Kind, dict[str, pa.DataType]] = {
        "label": {"label": text, "scores": scores},
        "labels": {"labels": pa.list_(text), "scores": scores},
        "value": {"value": number},
        "entities": {
            "entities": pa.list_(pa.struct({"type": text, **characters, **words, "score": number}))
        },
        "answers": {
            "answers": pa.list_(pa.struct({**characters, "score": number, "probability": number})),
            "null_score": number,
        },
    }
    return pa.schema({"id": text, "n_tokens": place, "truncated": pa.bool_(), **fields[kind]})

"""Texts to predictions, part by part (`workflows.inference.text_parts`)."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bert_core.errors import UserError
from bert_core.predictor import Predictor, load_predictor
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.text.texts import NamedTexts, TextPart, read_records
from workflows.inference.predict_settings import PredictionFormat
from workflows.inference.prediction_files import prediction_file
from workflows.inference.prediction_request import Kind, PredictionRequest
from workflows.inference.text_parts import TextJob, worker_device

PREDICTIONS = "predictions"
"""The folder of the parts."""

_TEXTS_AT_ONCE = 1024
_CHARACTERS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Prediction(TextJob):
    """What is to be predicted, and how; `task_name` as for `load_predictor`."""

    folder: ClassVar[str] = PREDICTIONS
    label: ClassVar[str] = "predicting"

    model: Path
    task_name: str | None
    request: PredictionRequest
    id_column: str | None
    output_format: PredictionFormat
    bfloat16: bool
    max_tokens: int

    def write(self, part: TextPart, stem: Path, dropped: Counter[str]) -> dict[str, Any]:
        """Writes the predictions of a part; the record has what a `Tally` has."""
        predictor = _predictor(self.model, self.task_name)
        tally = Tally(self.request.kind)
        path = stem.with_suffix(f".{self.output_format}")
        columns = self.request.columns
        records = read_records(part, dropped, columns, id_column=self.id_column)
        with prediction_file(path, self.output_format, self.request.kind) as write:
            for some in _chunks(self._taken(records, dropped)):
                rows, encoded = self._predict(predictor, some)
                write(rows)
                tally.count(rows, encoded)
        return {"counts": dict(tally.counts), "found": dict(tally.found), "values": tally.values}

    def _taken(self, records: Iterable[NamedTexts], dropped: Counter[str]) -> Iterator[NamedTexts]:
        for each in records:
            if self.request.takes(each):
                yield each
            else:
                dropped["records_of_words"] += 1

    def _predict(
        self, predictor: Predictor, records: list[NamedTexts]
    ) -> tuple[list[dict[str, Any]], EncodedRows]:
        codec = self.request.codec(predictor.task)
        examples = self.request.examples(records)
        encoded = codec.encode(examples, predictor.tokenizer)
        if self.request.overflow == "error" and encoded.truncated.any():
            number = int(encoded.truncated.argmax())
            raise UserError(
                f"{encoded.num_tokens[number]:,} tokens are more than the model reads at once",
                records[number].id,
                "shorten it, or set --overflow to window, right or left",
            )
        found = predictor.answer(
            codec,
            encoded,
            examples,
            max_tokens=self.max_tokens,
            autocast_dtype=torch.bfloat16 if self.bfloat16 else None,
        )
        read = zip(records, encoded.num_tokens.tolist(), encoded.truncated.tolist(), strict=True)
        return [
            {"id": record.id, "n_tokens": count, "truncated": cut, **self.request.fields(each)}
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
def _predictor(model: Path, task_name: str | None) -> Predictor:
    return load_predictor(model, worker_device(), task_name=task_name)


def _chunks(records: Iterable[NamedTexts]) -> Iterator[list[NamedTexts]]:
    """Some records at a time, one at least, so that memory holds no more than those."""
    some: list[NamedTexts] = []
    characters = 0
    for each in records:
        size = sum(_sizes(each))
        if some and (len(some) >= _TEXTS_AT_ONCE or characters + size > _CHARACTERS_AT_ONCE):
            yield some
            some, characters = [], 0
        some.append(each)
        characters += size
    if some:
        yield some


def _sizes(record: NamedTexts) -> Iterator[int]:
    """The characters of each text of a record."""
    for each in record.texts:
        yield len(each) if isinstance(each, str) else sum(map(len, each))

"""Multiple choice: a context and k ways to go on go in, the best of them comes out.

Devlin et al. 2018, section 4.4 (SWAG): each choice is a row `[CLS] context [SEP] choice [SEP]`,
a vector scores its pooled [CLS], and a softmax over the scores of one example decides.
Shapes: I items (examples), k choices, P = I k places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.tasks.choice_keys import Key, answers_of, key_of, listed_choices
from bert_core.tasks.data_splits import read_split
from bert_core.tasks.delimited import MAX_SKIPPED
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch
from bert_core.tasks.sequences import encode_sequences
from bert_core.tasks.tables import (
    Record,
    TaskDataError,
    column,
    text_of,
    value_of,
    written_value,
)
from bert_core.tasks.task import FloatArray, HeadShape, Task


@dataclass(frozen=True)
class Choices:
    """One example: a context, its choices, and which of them (from 0) is right, None if unknown.

    `columns` are all of the record's, for slices; `where` is its place in a file.
    """

    context: str
    choices: tuple[str, ...]
    answer: int | None
    where: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


class MultipleChoice(Task):
    """Decides how a context goes on; every example has as many choices as the others."""

    architecture: ClassVar[str] = "BertForMultipleChoice"
    unused: ClassVar[tuple[str, ...]] = ("labels",)

    context_column: str = Field(default="context", description="column of the context")
    start_column: str | None = Field(
        default=None, description="column of the words that every choice begins with (SWAG: sent2)"
    )
    choice_columns: tuple[str, ...] = Field(
        default=("choices",),
        min_length=1,
        description="columns of the choices, or one column that holds a list of them; a field"
        " within a column is called COLUMN.FIELD",
    )
    label_column: str = Field(
        default="label",
        description="column that says which choice is right: by the name of its column, a letter"
        " from A on, a number, or its text",
    )
    first_number: int | None = Field(
        default=None,
        ge=0,
        le=1,
        description="the number of the first choice, 0 or 1, where answers are numbers; by default"
        " what all numbers of the data allow, and what allows both is refused",
    )
    header: bool = Field(
        default=True,
        description="whether TSV and CSV begin with column names; else they are 0, 1 …",
    )
    skip_ragged: bool = Field(
        default=False, description="leave out lines with too few or too many columns"
    )
    max_skipped: float = Field(
        default=MAX_SKIPPED,
        ge=0,
        le=1,
        description="share of the lines of a TSV or CSV file that may be lost: left out by"
        " skip_ragged, or within a quote that is not closed",
    )

    @property
    def criterion(self) -> str:
        """The paper's metric of SWAG."""
        return "accuracy"

    @property
    def head(self) -> HeadShape:
        """The pooler's classifier with one output, the score of a choice."""
        return HeadShape("classifier", 1, pooled=True)

    def examples(self, data: str | Path, split: str) -> list[Choices]:
        """Reads a table, or a data set of the Hub; a record without an answer, or -1, has None.

        Raises `TaskDataError` for answers that can be read in more than one way.
        """
        records = self._records(data, split)
        examples = [self._example(record) for record in records]
        keys = list(map(self._key, records))
        answers = answers_of(
            keys,
            names=self.choice_columns if len(self.choice_columns) > 1 else (),
            names_are_numbers=not self.header,
            first_number=self.first_number,
            others=lambda: self._other_keys(data, split),
        )
        return [
            replace(each, answer=answer) for each, answer in zip(examples, answers, strict=True)
        ]

    def encode(self, examples: Sequence[Choices], tokenizer: Tokenizer) -> EncodedRows:
        """A row for each choice; one label, and one decision, for each example.

        Raises `TaskDataError` where an example has other than as many choices as the first.
        """
        num_choices = len(examples[0].choices) if examples else 1
        for each in examples:
            if len(each.choices) != num_choices:
                raise TaskDataError(
                    f"{len(each.choices)} choices where the first example has {num_choices}",
                    each.where or each.context[:60],
                    "give every example as many, or leave the others out",
                )
        contexts = [each.context for each in examples for _ in each.choices]
        choices = [choice for each in examples for choice in each.choices]
        sequences = encode_sequences(tokenizer, contexts, choices, self.max_length)
        items = np.arange(len(examples))
        answers = [IGNORE_INDEX if each.answer is None else each.answer for each in examples]
        return EncodedRows(
            input_ids=sequences.input_ids,
            lengths=sequences.lengths,
            first_lengths=sequences.first_lengths,
            places=np.zeros(len(choices), dtype=np.int64),
            place_counts=np.ones(len(choices), dtype=np.int64),
            labels=np.array(answers, dtype=np.int64),
            labels_per_item=np.ones_like(items),
            rows_per_item=np.full_like(items, num_choices),
            example=np.repeat(items, num_choices),
            num_tokens=sequences.num_tokens.reshape(-1, num_choices).sum(1),
            truncated=np.asarray(sequences.truncated.reshape(-1, num_choices).any(1)),
            notes={},
        )

    def loss(self, outputs: Tensor, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        """Cross entropy over the scores of each example's choices."""
        scores = outputs.view(len(batch.labels), -1)  # [I, k]
        total = F.cross_entropy(scores, batch.labels, ignore_index=IGNORE_INDEX, reduction="sum")
        return total, (scores.detach().argmax(-1) == batch.labels).sum()

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Choices]
    ) -> list[dict[str, Any]]:
        """`choice`, from 0, and `scores`, which add up to 1, for each example."""
        del examples
        if not rows.num_items:
            return []
        logits = outputs.astype(np.float64).reshape(rows.num_items, -1)  # [I, k]
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        return [{"choice": int(row.argmax()), "scores": row.tolist()} for row in scores]

    def metrics(
        self, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Choices]
    ) -> dict[str, float]:
        """Accuracy."""
        right = [
            prediction["choice"] == each.answer
            for prediction, each in zip(predictions, examples, strict=True)
        ]
        return {"accuracy": float(np.mean(right))}

    def _records(self, data: str | Path, split: str) -> list[Record]:
        return list(
            read_split(
                data,
                split,
                header=self.header,
                skip_ragged=self.skip_ragged,
                max_skipped=self.max_skipped,
            )
        )

    def _example(self, record: Record) -> Choices:
        start = f"{text_of(record, self.start_column)} " if self.start_column else ""
        return Choices(
            context=text_of(record, self.context_column),
            choices=tuple(start + choice for choice in self._choices(record)[0]),
            answer=None,
            where=record.where,
            columns=record.values,
        )

    def _key(self, record: Record) -> Key:
        """What the record says of its answer, beside the texts of its choices."""
        texts, labels = self._choices(record)
        return key_of(value_of(record, self.label_column), texts, record.where, labels)

    def _other_keys(self, data: str | Path, split: str) -> list[Key]:
        """The keys of the other splits of a folder, or of the Hub, that can be read."""
        found: list[Key] = []
        if isinstance(data, Path) and not data.is_dir():
            return found
        for name in {"train", "dev", "test"} - {split}:
            try:
                found += map(self._key, self._records(data, name))
            except UserError:  # said when that split is read
                continue
        return found

    def _choices(self, record: Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts of the choices, and what the record calls them, where it does."""
        if len(self.choice_columns) != 1:
            return tuple(text_of(record, name) for name in self.choice_columns), ()
        name = self.choice_columns[0]
        listed = listed_choices(written_value(column(record, name)))
        if listed is None or len(listed[0]) < 2:
            raise TaskDataError(
                f"no list of choices in column {name}",
                record.where,
                "write them as a list (JSONL, Parquet), or name a column for each",
            )
        texts, labels = listed
        return tuple(text_of(Record({name: each}, record.where), name) for each in texts), labels


SWAG = MultipleChoice(
    context_column="sent1",
    start_column="sent2",
    choice_columns=("ending0", "ending1", "ending2", "ending3"),
    first_number=0,
)
"""The columns of SWAG's files as they were published (Zellers et al. 2018)."""

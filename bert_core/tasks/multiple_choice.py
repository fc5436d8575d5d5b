"""Multiple choice: a context and k ways to go on go in, the best of them comes out.

Devlin et al. 2018, section 4.4 (SWAG): each choice is a row `[CLS] context [SEP] choice [SEP]`,
a vector scores its pooled [CLS], and a softmax over the scores of one example decides.
Shapes: I items (examples), k choices, P = I k places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.data_splits import read_split
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch
from bert_core.tasks.label_values import label_of, not_labels
from bert_core.tasks.sequences import encode_sequences
from bert_core.tasks.tables import Record, TaskDataError, column, text_of
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

    context_column: str = Field(default="context", description="column of the context")
    start_column: str | None = Field(
        default=None, description="column of the words that every choice begins with (SWAG: sent2)"
    )
    choice_columns: tuple[str, ...] = Field(
        default=("choices",),
        min_length=1,
        description="columns of the choices, or one column that holds a list of them",
    )
    label_column: str = Field(
        default="label",
        description="column that says which choice is right: a number from 0, or a choice's column",
    )
    header: bool = Field(
        default=True,
        description="whether TSV and CSV begin with column names; else they are 0, 1 …",
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
        """Reads a table, or a data set of the Hub; a record without an answer, or -1, has None."""
        return [self._example(record) for record in read_split(data, split, header=self.header)]

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
                    "give every example as many",
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

    def _example(self, record: Record) -> Choices:
        start = f"{text_of(record, self.start_column)} " if self.start_column else ""
        choices = self._choices(record)
        return Choices(
            context=text_of(record, self.context_column),
            choices=tuple(start + choice for choice in choices),
            answer=self._answer(record, len(choices)),
            where=record.where,
            columns=record.values,
        )

    def _choices(self, record: Record) -> list[str]:
        if len(self.choice_columns) != 1:
            return [text_of(record, name) for name in self.choice_columns]
        name = self.choice_columns[0]
        listed = column(record, name)
        if not isinstance(listed, list) or len(listed) < 2:
            raise TaskDataError(
                f"no list of choices in column {name}",
                record.where,
                "write them as a list (JSONL, Parquet), or name a column for each",
            )
        return [text_of(Record({name: each}, record.where), name) for each in listed]

    def _answer(self, record: Record, num_choices: int) -> int | None:
        value = record.values.get(self.label_column)
        name = label_of(value)
        known = {str(index): index for index in range(num_choices)}
        if len(self.choice_columns) > 1:
            known = dict(zip(self.choice_columns, range(num_choices), strict=True)) | known
        if name is None or not_labels({name}, known):
            return None
        if name not in known:
            raise TaskDataError(
                f"unknown label {value!r}", record.where, f"one of {', '.join(known)}"
            )
        return known[name]


SWAG = MultipleChoice(
    context_column="sent1",
    start_column="sent2",
    choice_columns=("ending0", "ending1", "ending2", "ending3"),
)
"""The columns of SWAG's files as they were published (Zellers et al. 2018)."""

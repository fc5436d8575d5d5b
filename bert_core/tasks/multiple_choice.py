"""Multiple choice: given a context and k choices, picks the best one.

Devlin et al. 2018, section 4.4 (SWAG): each choice is a row `[CLS] context [SEP] choice [SEP]`,
a vector scores its pooled [CLS], and a softmax over the scores of one example decides.

A file may give the right choice as a column's name, a letter, a number, or the text. A
whole file is read in one way; it is refused where two ways are possible and disagree.
Shapes: I items (examples), k choices, P = I k places.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.tasks.delimited import MAX_SKIPPED, HasHeader, MaxSkipped
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch, whole_rows
from bert_core.tasks.label_values import label_of
from bert_core.tasks.sequences import Side, encode_sequences
from bert_core.tasks.tables import (
    Record,
    TaskDataError,
    column,
    parse_cell,
    read_split,
    text_of,
    value_of,
)
from bert_core.tasks.task import (
    ClassifierPooling,
    FloatArray,
    HeadShape,
    Predictions,
    Task,
    pooled_head,
    softmax,
)

if TYPE_CHECKING:
    from torch import Tensor

# --help reads the tasks: torch is loaded within functions.

_WHOLE_NUMBER = re.compile(r"([+-]?\d{1,9})(?:\.0*)?", re.ASCII)
_LETTER = re.compile(r"[A-Za-z]")
_BRACKETED = re.compile(r"[(\[]?\s?(\w{1,9})\s?[)\].:]{0,2}")
_FIRST_NUMBER = "--options.first_number 0 or 1 (evaluate.py: --options first_number=0)"

_Read = Callable[["Key"], int | None]


@dataclass(frozen=True)
class Key:
    """A record's answer as written (`text`, None if missing) and its `choices`.

    Whole numbers have the same text however they are written: 1, "1", 1.0. `labels` are what the
    record itself calls its choices, if it does.
    """

    text: str | None
    choices: tuple[str, ...]
    where: str
    labels: tuple[str, ...] = ()

    @property
    def number(self) -> int | None:
        """The number, where it is one, perhaps in brackets."""
        text = _bare(self.text or "")
        return int(text) if _WHOLE_NUMBER.fullmatch(text) else None

    @property
    def letter(self) -> int | None:
        """The number of the letter, A being 0, where it is one: `A`, `(a)`, `A.`."""
        text = _bare(self.text or "")
        return ord(text.upper()) - ord("A") if _LETTER.fullmatch(text) else None

    @property
    def labelled(self) -> int | None:
        """The index of the choice that the record itself names so."""
        wanted = _bare(self.text or "").casefold()
        return self.labels.index(wanted) if wanted and wanted in self.labels else None

    def within(self, index: int | None) -> int | None:
        """The number of a choice; None where there is no such choice."""
        return index if index is not None and 0 <= index < len(self.choices) else None


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
    """Chooses the best continuation of a context; every example has as many choices."""

    architecture: ClassVar[str] = "BertForMultipleChoice"
    unused: ClassVar[tuple[str, ...]] = ("labels",)

    context_column: str = Field(default="context", description="column of the context")
    start_column: str | None = Field(
        default=None, description="column of the text that starts every choice (SWAG: sent2)"
    )
    choice_columns: tuple[str, ...] = Field(
        default=("choices",),
        min_length=1,
        description="columns of the choices, or one column with a list of them; COLUMN.FIELD"
        " names a field of a column",
    )
    label_column: str = Field(
        default="label",
        description="column of the right choice: the name of its column, a letter from A on,"
        " a number, or its text",
    )
    first_number: int | None = Field(
        default=None,
        ge=0,
        le=1,
        description="number of the first choice, 0 or 1, where answers are numbers; by"
        " default inferred from the data, which is refused where both are possible",
    )
    classifier_pooling: ClassifierPooling = "cls"
    header: HasHeader = True
    skip_ragged: bool = Field(
        default=False, description="leave out lines with too few or too many columns"
    )
    max_skipped: MaxSkipped = MAX_SKIPPED

    @property
    def criterion(self) -> str:
        """The paper's metric of SWAG."""
        return "accuracy"

    @property
    def head(self) -> HeadShape:
        """The pooler's classifier with one output, the score of a choice."""
        return pooled_head(1, self.classifier_pooling)

    @property
    def tunable(self) -> tuple[str, ...]:
        """The temperature of the choices."""
        return ("temperature",)

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
            replace(example, answer=answer)
            for example, answer in zip(examples, answers, strict=True)
        ]

    def texts(self, example: Choices) -> list[str]:
        """The context, and all choices."""
        return [example.context, *example.choices]

    def encode(
        self, examples: Sequence[Choices], tokenizer: Tokenizer, side: Side = "right"
    ) -> EncodedRows:
        """A row for each choice, too long ones cut on a side; one label for each example.

        Raises `TaskDataError` where an example has other than as many choices as the first.
        """
        num_choices = len(examples[0].choices) if examples else 1
        for example in examples:
            if len(example.choices) != num_choices:
                raise TaskDataError(
                    f"{len(example.choices)} choices where the first example has {num_choices}",
                    example.where or example.context[:60],
                    "give every example as many, or leave the others out",
                )
        contexts = [example.context for example in examples for _ in example.choices]
        choices = [choice for example in examples for choice in example.choices]
        sequences = encode_sequences(tokenizer, contexts, choices, self.max_length, side)
        items = np.arange(len(examples))
        num_tokens = sequences.num_tokens.reshape(-1, num_choices)
        answers = [
            IGNORE_INDEX if example.answer is None else example.answer for example in examples
        ]
        places, place_counts = whole_rows(sequences.lengths, self.classifier_pooling)
        return EncodedRows(
            input_ids=sequences.input_ids,
            lengths=sequences.lengths,
            first_lengths=sequences.first_lengths,
            places=places,
            place_counts=place_counts,
            labels=np.array(answers, dtype=np.int64),
            labels_per_item=np.ones_like(items),
            rows_per_item=np.full_like(items, num_choices),
            example=np.repeat(items, num_choices),
            num_tokens=num_tokens.sum(1),
            truncated=np.asarray(sequences.truncated.reshape(-1, num_choices).any(1)),
            limited_part=("context with its longest choice", num_tokens.max(1), self.max_length),
        )

    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """Cross entropy over the scores of each example's choices."""
        from torch.nn import functional as F

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
        scores = softmax(outputs.reshape(rows.num_items, -1))  # [I, k]
        return [{"choice": int(row.argmax()), "scores": row.tolist()} for row in scores]

    def metrics(self, predictions: Predictions, examples: Sequence[Choices]) -> dict[str, float]:
        """Accuracy."""
        right = [
            prediction["choice"] == example.answer
            for prediction, example in zip(predictions, examples, strict=True)
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
            except UserError:  # reported when that split is read
                continue
        return found

    def _choices(self, record: Record) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts of the choices, and the record's own names for them, if any."""
        if len(self.choice_columns) != 1:
            return tuple(text_of(record, name) for name in self.choice_columns), ()
        name = self.choice_columns[0]
        listed = listed_choices(parse_cell(column(record, name)))
        if listed is None or len(listed[0]) < 2:
            raise TaskDataError(
                f"no list of choices in column {name}",
                record.where,
                "write them as a list (JSONL, Parquet), or name a column for each",
            )
        texts, labels = listed
        return tuple(text_of(Record({name: text}, record.where), name) for text in texts), labels


SWAG = MultipleChoice(
    context_column="sent1",
    start_column="sent2",
    choice_columns=("ending0", "ending1", "ending2", "ending3"),
    first_number=0,
)
"""The columns of SWAG's files as they were published (Zellers et al. 2018)."""


def listed_choices(value: Any) -> tuple[tuple[Any, ...], tuple[str, ...]] | None:  # noqa: ANN401 - a table's
    """Texts and labels of choices in one cell, labels only where they have some; None for others.

    A list of texts, or of `{"text": …, "label": …}`; `{"text": […], "label": […]}`, as ARC has it
    on the Hub; `{"A": …, "B": …}`.
    """
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        value = {name: [each.get(name) for each in value] for name in ("text", "label")}
    if isinstance(value, list):
        return tuple(value), ()
    if not isinstance(value, Mapping):
        return None
    texts, labels = value.get("text"), value.get("label")
    if isinstance(texts, list):
        if not isinstance(labels, list) or len(labels) != len(texts):
            labels = []
        return tuple(texts), _names(labels)
    choices = {name: text for name, text in value.items() if text is not None}
    return tuple(choices.values()), _names(list(choices))


def _names(labels: Sequence[Any]) -> tuple[str, ...]:
    """The names that labels are; none where they repeat or are 1 and 0, which mark the answer."""
    names = tuple(_bare("" if label is None else str(label)).casefold() for label in labels)
    return names if len(set(names)) == len(names) and names != ("1", "0") else ()


def key_of(
    value: Any,  # noqa: ANN401 - a table's
    choices: tuple[str, ...],
    where: str,
    labels: tuple[str, ...] = (),
) -> Key:
    """Reads the key of a record; -1 and missing labels (`label_values`) give None."""
    text = label_of(value) or ""
    whole = _WHOLE_NUMBER.fullmatch(text)
    text = str(int(whole[1])) if whole else text
    return Key(None if text in ("", "-1") else text, choices, where, labels)


def _bare(text: str) -> str:
    """A letter or number without the brackets, point or colon around it."""
    found = _BRACKETED.fullmatch(text)
    return found[1] if found else text


def answers_of(
    keys: Sequence[Key],
    *,
    names: Sequence[str],
    names_are_numbers: bool,
    first_number: int | None,
    others: Callable[[], Sequence[Key]],
) -> list[int | None]:
    """Returns the answer of each key, counted from 0; None where it is missing.

    `names` are those of the choices' columns, which mean more than letters and numbers do, unless
    there is no header and they are numbers themselves. Numbers count from `first_number`, or from
    what all keys allow, those of the `others`, which are the other splits, too. What a record
    itself calls its choices comes before all that, unless a number is none of its record's.

    Raises `TaskDataError`, with its place, for a key that says nothing of the choices, and where
    keys may mean different choices.
    """
    if any(key.labels for key in keys):
        others = cache(others)
        numbered = [*keys, *(others() if any(key.number is not None for key in keys) else ())]
        if any(key.number is not None and key.labels and key.labelled is None for key in numbered):
            keys = [replace(key, labels=()) for key in keys]
    given = [key for key in keys if key.text is not None and key.labelled is None]
    by_name = _by_name(names)
    letters = _letters(given, by_name)
    numbers = [each for each in given if each.number is not None]
    ways = [_either(by_name, letters)]
    if numbers:
        of_numbers = _numbers(numbers, by_name, names_are_numbers, first_number, others)
        ways = [_either(read, by_name, letters) for read in of_numbers]
    found = [read for read in [[way(each) for each in given] for way in ways] if None not in read]
    all_named = not names_are_numbers and all(by_name(each) is not None for each in given)
    if not all_named and (first_number is None or not numbers):
        texts = [_by_text(each) for each in given]
        found += [] if None in texts else [texts]
    if not found:
        _refuse_unknown(given, ways, _either(by_name, letters), names)
    for read in found[1:]:
        _refuse_another_answer(given, found[0], read)
    answers = iter(found[0])
    return [
        key.labelled if key.text is None or key.labelled is not None else next(answers)
        for key in keys
    ]


def _by_name(names: Sequence[str]) -> _Read:
    exact = {name: index for index, name in enumerate(names)}
    folded = [name.casefold() for name in names]
    alike = {name: index for index, name in enumerate(folded) if folded.count(name) == 1}
    return lambda key: exact.get(key.text or "", alike.get((key.text or "").casefold()))


def _letters(given: Sequence[Key], by_name: _Read) -> _Read:
    """Reads letters, unless one of them names another column than its letter does."""
    named = [each for each in given if each.letter is not None and by_name(each) is not None]
    if any(by_name(each) != each.letter for each in named):
        return by_name
    return lambda key: key.within(key.letter)


def _numbers(
    numbers: Sequence[Key],
    by_name: _Read,
    names_are_numbers: bool,
    first_number: int | None,
    others: Callable[[], Sequence[Key]],
) -> list[_Read]:
    """The ways in which keys that are numbers may be read, all of them in the same way."""
    named = [number for number in numbers if by_name(number) is not None]
    all_named = len(named) == len(numbers)
    if first_number is not None:
        counted = _counted_from(first_number)
        other = next((each for each in named if by_name(each) != counted(each)), None)
        if all_named and other is not None and not names_are_numbers:
            raise TaskDataError(
                f"the answer {other.text!r} is the name of a column, and the number of another",
                other.where,
                "leave --options.first_number out, or rename the columns",
            )
        return [counted]
    if all_named and not names_are_numbers:
        return [by_name]
    ways = [by_name] if all_named else []
    all_numbers = [*numbers, *(each for each in others() if each.number is not None)]
    for counted in map(_counted_from, (0, 1)):
        agrees = names_are_numbers or all(by_name(each) == counted(each) for each in named)
        if agrees and all(counted(number) is not None for number in all_numbers):
            ways.append(counted)
    return ways


def _counted_from(first: int) -> _Read:
    return lambda key: key.within(None if key.number is None else key.number - first)


def _either(*reads: _Read) -> _Read:
    return lambda key: next((found for read in reads if (found := read(key)) is not None), None)


def _by_text(key: Key) -> int | None:
    for same in (str.strip, str.casefold):
        texts = [same(choice.strip()) for choice in key.choices]
        if texts.count(same(key.text or "")) == 1:
            return texts.index(same(key.text or ""))
    return None


def _refuse_another_answer(
    given: Sequence[Key], first: Sequence[int | None], second: Sequence[int | None]
) -> None:
    for key, one, other in zip(given, first, second, strict=True):
        if one != other and one is not None and other is not None:
            choices = " or ".join(f"{key.choices[each][:40]!r}" for each in (one, other))
            raise TaskDataError(
                f"the answer {key.text!r} may be the choice {choices}",
                key.where,
                f"give {_FIRST_NUMBER} where answers are numbers, or write the names of the"
                " columns",
            )


def _refuse_unknown(
    given: Sequence[Key], ways: Sequence[_Read], without_numbers: _Read, names: Sequence[str]
) -> None:
    """Raises for the first key without an answer, under the reader that fails least often."""
    counted = [_either(_counted_from(first), without_numbers) for first in (0, 1)]
    failures = [[each for each in given if way(each) is None] for way in ways or counted]
    wrong = next(iter(min(failures, key=len)), None)
    known = ", ".join([*names, "a letter from A on", "a number", "the text of a choice"])
    if wrong is None or wrong.number is not None:
        numbers = sorted({each.number for each in given if each.number is not None})
        raise TaskDataError(
            f"unknown label {(wrong or given[0]).text!r}: numbers from {numbers[0]} to"
            f" {numbers[-1]}, with those of the other splits, can be counted neither from 0 nor"
            " from 1",
            (wrong or given[0]).where,
            f"fix the answer, or give {_FIRST_NUMBER}",
        )
    raise TaskDataError(f"unknown label {wrong.text!r}", wrong.where, f"one of {known}")

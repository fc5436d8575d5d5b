"""Which examples are trained on, held out, left out, or answered by a teacher.

Labelled examples are divided into train and dev, or into folds: every label has its share in each
part, what belongs together stays together, and the division is a function of the examples and a
seed, so driver and workers divide alike. N examples, P parts.

A file, such as the suspects of an audit, names examples that a run does not learn from: each row by
the place in the training file (`where`) and the texts (`text`, and `second` of a pair). A row that
names none is an error: the data may have changed.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bert_core.errors import UserError
from bert_core.evaluation.outcomes import documents
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.label_values import label_of
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.tables import Record, TaskDataError, column, read_table, value_of
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.text.rng import CounterHash, IntArray, permutation
from bert_core.text_encoding import open_text

WHERE = "where"
TEXTS = ("text", "second")
"""The columns that name an example: its place, and its texts."""
_SUFFIXES = (".csv", ".jsonl")

_OF_TABLES = ("header", "skip_ragged", "max_skipped")
_NO_COLUMN = "\0"
"""A column that no table has."""

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"'*[+-]?\d+(\.\d+)?")

_BINS = 10
_SMALL = 9  # digits that decide; beyond them two parts lack equally much
_LEAST = 0.9
"""Of its share, what a part has at least, where strata leave that much."""

Example = TypeVar("Example")


@dataclass(frozen=True)
class Division:
    """How training examples are divided: the share of each part, and which of them is dev."""

    shares: tuple[float, ...]
    dev: int = 0
    group_by: str | None = None
    seed: int = 0
    of_folds: bool = False

    def __str__(self) -> str:
        what = f"{self.shares[self.dev]:.4g} of the training examples"
        if self.of_folds:
            what = f"fold {self.dev} of {len(self.shares)}"
        by = f", column {self.group_by} kept together" if self.group_by else ""
        return f"dev is {what}{by}, seed {self.seed}"

    def divide(
        self, task: Task, examples: Sequence[Example], where: str
    ) -> tuple[list[Example], list[Example]]:
        """Train and dev, each in the order of the examples.

        Raises `TaskDataError` where a part would be empty, or a column is missing.
        """
        part = parts_of(task, examples, self)
        empty = np.setdiff1d(np.arange(len(self.shares)), part)
        if len(empty):
            what = f"{len(examples):,} examples are too few for these parts"
            if self.group_by:
                what = f"the groups of column {self.group_by} do not fill {len(self.shares)} parts"
            group = _groups(task, examples, self.group_by)
            sizes = np.bincount(group)
            if len(sizes) < len(group):
                first = getattr(examples[int((group == sizes.argmax()).argmax())], "where", "")
                what += f"; the largest group, of {first}, has {sizes.max():,} of {len(group):,}"
            remedy = "give more of them"
            if not self.of_folds:
                remedy += f", or a {'larger' if self.dev in empty else 'smaller'} --split"
            elif len(self.shares) > 2:
                remedy += ", or fewer --folds"
            raise TaskDataError(what, where, remedy)
        is_dev = (part == self.dev).tolist()
        train = [each for each, dev in zip(examples, is_dev, strict=True) if not dev]
        return train, [each for each, dev in zip(examples, is_dev, strict=True) if dev]


def parts_of(task: Task, examples: Sequence[Any], division: Division) -> IntArray:
    """The part of each example, [N].

    The values of the column `group_by` stay together, and so do the questions of a context, the
    sentences of a document, and equal texts of examples that share none of these with others.
    """
    group = _groups(task, examples, division.group_by)
    return balanced_parts(_strata(task, examples), group, division.shares, division.seed)


def balanced_parts(
    strata: Sequence[Sequence[Hashable]], group: IntArray, shares: Sequence[float], seed: int
) -> IntArray:
    """The part of each of N examples, [N], its strata and its group (0 …) being given.

    Groups are dealt in random order, large ones first, each to the part that lacks most of what
    it has: of its strata, a rare one counting more, and then of examples. (Sechidis et al. 2011.)
    Of many strata of a few examples each that may leave nothing for a small part: then it goes
    first to a part that lacks some of its strata and, of all examples, as many as the group has.
    """
    part = _dealt(strata, group, shares, seed, sizes_first=False)
    least = _LEAST * len(group) * np.asarray(shares)
    if (np.bincount(part, minlength=len(shares)) < least).any():
        part = _dealt(strata, group, shares, seed, sizes_first=True)
    return part


def _dealt(
    strata: Sequence[Sequence[Hashable]],
    group: IntArray,
    shares: Sequence[float],
    seed: int,
    *,
    sizes_first: bool,
) -> IntArray:
    sizes = np.bincount(group)
    members: list[Counter[Hashable]] = [Counter() for _ in sizes]
    for number, of_example in zip(group.tolist(), strata, strict=True):
        members[number].update(of_example)
    total: Counter[Hashable] = Counter()
    for each in members:  # their sum would copy all strata once a group
        total.update(each)
    placed: dict[Hashable, list[int]] = defaultdict(lambda: [0] * len(shares))
    filled = [0] * len(shares)
    part = np.zeros(len(sizes), dtype=np.int64)
    drawn = permutation(CounterHash("split", seed), len(sizes))
    for number in drawn[np.argsort(-sizes[drawn], kind="stable")].tolist():
        counts = members[number]
        seen = {each: sum(placed[each]) + count for each, count in counts.items()}
        size = int(sizes[number])

        def lacking(index: int) -> tuple[bool, float, float]:
            share = shares[index]
            of_strata = sum(
                count / total[each] * (share * seen[each] - placed[each][index])  # noqa: B023
                for each, count in counts.items()  # noqa: B023
            )
            of_all = share * (sum(filled) + size) - filled[index]  # noqa: B023
            of_strata, of_all = round(of_strata, _SMALL), round(of_all, _SMALL)
            is_behind = sizes_first and of_strata > 0 and of_all >= size  # noqa: B023
            return is_behind, of_strata, of_all

        best = max(range(len(shares)), key=lacking)  # the first of equals
        part[number] = best
        filled[best] += size
        for each, count in counts.items():
            placed[each][best] += count
    return part[group]


def _strata(task: Task, examples: Sequence[Any]) -> list[list[Hashable]]:
    """What of each example all parts should have alike: its labels, or the size of its number."""
    answers = [getattr(example, "answer", None) for example in examples]
    numbers = [answer for answer in answers if isinstance(answer, float)]
    if len(numbers) == len(answers):
        edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
        return [[bin_] for bin_ in np.searchsorted(edges, numbers).tolist()]
    return [list[Hashable](sorted(task.label_names([each]) or ())) for each in examples]


def _groups(task: Task, examples: Sequence[Any], group_by: str | None) -> IntArray:
    """The number of each example's group, [N]; a group has whatever shares a name, in turn.

    Names are the document and the value of the column `group_by`, and the texts of an example that
    shares neither: a few frequent lines would join all documents.
    """
    names: list[list[Hashable]] = [[] for _ in examples]
    for number, document in enumerate(documents(examples) or ()):
        names[number].append(("document", document))
    records = [
        Record(getattr(each, "columns", {}), getattr(each, "where", ""))
        for each in (examples if group_by is not None else ())
    ]
    values = [label_of(value_of(record, str(group_by))) for record in records]
    if records and not any(value is not None for value in values):
        column(records[0], str(group_by))  # raises for a column that is not there
    for number, value in enumerate(values):
        if value is not None:
            names[number].append(("group", value))
    counts = Counter(name for own in names for name in own)
    for own, example in zip(names, examples, strict=True):
        if all(counts[name] == 1 for name in own):
            own += [("text", text) for text in text_keys(task, example)]
    parent = list(range(len(examples)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    first: dict[Hashable, int] = {}
    for number, own in enumerate(names):
        for name in own:
            other = root(first.setdefault(name, number))
            parent[root(number)] = other
    _, group = np.unique([root(number) for number in range(len(examples))], return_inverse=True)
    return group.astype(np.int64)


def text_keys(task: Task, example: Any) -> list[str]:  # noqa: ANN401 - of any task
    """What two examples have in common that ask the same, whatever their case, spaces and form.

    All texts together, or, of related texts, each of them but wrong answers, which many share.
    """
    normal = (unicodedata.normalize("NFKC", text).casefold() for text in task.texts(example))
    texts = [" ".join(text.split()) for text in normal]
    return texts[:2] if task.is_coupled else ["\n".join(texts)]


@dataclass(frozen=True)
class Overlap:
    """How many examples of a split have the text of a training example, and another answer."""

    count: int
    contradicting: int

    def __str__(self) -> str:
        others = f", {self.contradicting:,} of them another answer" if self.contradicting else ""
        return f"{self.count:,} have a text of train{others}"


def overlap(task: Task, train: Sequence[Any], others: Sequence[Any]) -> Overlap:
    """What of a split is in train, too."""
    answers: dict[str, set[str]] = defaultdict(set)
    for example in train:
        for key in text_keys(task, example):
            answers[key].add(_answer(example))
    shared = [
        (example, answers[key])
        for example in others
        for key in text_keys(task, example)[:1]
        if key in answers
    ]
    return Overlap(len(shared), sum(_answer(example) not in known for example, known in shared))


def _answer(example: Any) -> str:  # noqa: ANN401 - of any task
    names = ("answer", "answers", "tags")
    return repr([getattr(example, name, None) for name in names])


def place_of(where: str) -> str:
    """The place of an example without folders: `train.tsv:12`; an address stays as it is."""
    return where if "://" in where else Path(where).name


def as_cell(text: str) -> str:
    """The text as a cell of CSV: what a spreadsheet takes for a formula begins with an apostrophe.

    (CSV injection, OWASP.) Numbers stay as they are. `of_cell` gives the text back.
    """
    return f"'{text}" if _is_formula(text) else text


def of_cell(cell: str) -> str:
    """The text of such a cell."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    """Whether it is one behind its apostrophes: those that were there, and ours."""
    return _FORMULA.match(text) is not None and _NUMBER.fullmatch(text) is None


def excluded(task: Task, file: str, examples: Sequence[Any]) -> set[int]:
    """The numbers of the examples that a CSV or JSONL file names.

    Raises `UserError` for another kind of file or task, and for a row that names no example.
    """
    path = Path(file)
    if path.suffix not in _SUFFIXES:
        raise UserError(
            "unknown kind of file", f"--exclude {file}", f"use {' or '.join(_SUFFIXES)}"
        )
    if not isinstance(task, Classification | Tagging):
        what = "examples of labels and of tags can be left out, not of other tasks"
        raise UserError(what, f"--exclude {file}", "leave it out")
    if not path.is_file():
        raise UserError("no such file", f"--exclude {file}", "check the path")
    by_place: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        by_place.setdefault(place_of(example.where), []).append(number)
    found: set[int] = set()
    # A text of several lines is no quote that was left open: the file was written by a program.
    for record in read_table(path, max_skipped=1):
        place = place_of(_cell_text(record, WHERE, path))
        there = by_place.get(place, [])
        same = [number for number in there if _has_texts(task, examples[number], record, path)]
        if not same:
            what = "another text at" if there else "no training example at"
            remedy = "the data must be those that were audited: audit these"
            raise UserError(f"{what} {place}", record.where, remedy)
        found.update(same)
    return found


def _has_texts(task: Task, example: Any, record: Record, path: Path) -> bool:  # noqa: ANN401
    texts = task.texts(example)
    names = TEXTS[: len(texts)]
    return [_cell_text(record, name, path) for name in names] == texts


def _cell_text(record: Record, name: str, path: Path) -> str:
    value = str(column(record, name))
    return of_cell(value) if path.suffix == ".csv" else value


def unlabelled_examples(task: Task, sources: Sequence[str | Path]) -> list[Any]:
    """The examples of files, or addresses, without their answers if they have any.

    A student learns from them because its teacher answers them. Of a classification's `.txt` each
    line is a text; everything else is read as training data are, but for a column of labels, which
    may hold anything. Raises `TaskDataError` for what cannot be read, and where there is nothing.
    """
    if isinstance(task, Classification | MultipleChoice):
        task = task.model_copy(update={"label_column": _NO_COLUMN})
    fields = type(task).model_fields
    usual = {name: fields[name].default for name in _OF_TABLES if name in fields}
    found: list[Any] = []
    for source in sources:
        suffix = source.suffix if isinstance(source, Path) else ""
        if suffix == ".txt" and isinstance(task, Classification):
            examples: Sequence[Any] = _lines(task, Path(source))
        else:  # how the tables of train are written says nothing of files that are none
            changes = {} if suffix in (".tsv", ".csv") else usual
            examples = task.model_copy(update=changes).examples(source, "train")
        if not examples:
            raise TaskDataError("no unlabelled examples", str(source), "leave it out")
        found += map(without_answer, examples)
    return found


def without_answer(example: Any) -> Any:  # noqa: ANN401 - of any task
    """The same example, its answer unknown."""
    names = [name for name in ("answer", "answers", "tags") if hasattr(example, name)]
    return replace(example, **dict.fromkeys(names))


def refuse_other_choices(train: EncodedRows, unlabelled: EncodedRows, where: str) -> None:
    """Raises `TaskDataError` where examples have other numbers of choices than those of train."""
    ours, theirs = (int(rows.rows_per_item.max(initial=1)) for rows in (train, unlabelled))
    if ours != theirs:
        what = f"{theirs} choices where the training examples have {ours}"
        raise TaskDataError(what, where, "give examples with as many")


def _lines(task: Classification, path: Path) -> list[Text]:
    if task.reads_pairs:
        remedy = "give a table with the columns of train"
        raise TaskDataError("lines of text, and the task reads pairs", str(path), remedy)
    if not path.is_file():
        raise TaskDataError("no such file", str(path), "check the path")
    with open_text(path) as file:
        lines = [line.strip() for line in file]
    return [Text(line, None, None, f"{path}:{n}") for n, line in enumerate(lines, 1) if line]

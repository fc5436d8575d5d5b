"""Search tasks whose pairs of query and passage are made from other data.

- `squad_search`: SQuAD's questions, and the paragraphs that answer them
- `docs_search`: the names of functions and classes of installed packages, and what they do
- `text_search`: of plain text the titles of documents and what stands below, or paragraphs and the
  next ones, for whoever has a corpus and no queries
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from bert_core.tasks.docstrings import (
    Module,
    divide_by_split,
    evenly_spaced,
    examples_of,
    modules_of,
    packages_of,
    passages,
)
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tables import (
    OTHER_SUFFIXES,
    TABLE_SUFFIXES,
    TaskDataError,
    is_on_hub,
    read_split,
    split_file,
    text_of,
)
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding
from bert_core.text.rng import CounterHash
from bert_core.text_encoding import open_text

_COLUMNS = (
    *("query_column", "passage_column", "negative_columns", "score_column", "text_column"),
    *("label_column", "header"),
)


class SquadSearch(TextEmbedding):
    """Finds the paragraph that answers a question, among all paragraphs."""

    unused: ClassVar[tuple[str, ...]] = ("labels", "kind", *_COLUMNS)

    def examples(self, data: str | Path, split: str) -> list[RelatedTexts]:
        """Reads SQuAD's JSON 1.1, or its columns, as the task `squad` does."""
        return [
            RelatedTexts((each.question, each.context), True, each.where, each.columns)
            for each in QuestionAnswering().examples(data, split)
            if each.question.strip() and each.context.strip()
        ]


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PER_MODULE = 40
_FEWEST_WORDS = 4


class DocstringSearch(TextEmbedding):
    """Finds what a function or class does by its name."""

    unused: ClassVar[tuple[str, ...]] = ("labels", "kind", *_COLUMNS)

    max_examples: int = Field(default=4000, ge=100, description="training pairs")

    def examples(self, data: str | Path, split: str) -> list[RelatedTexts]:
        """Names and summaries in the documentation of the packages of `docs://…`."""
        return examples_of(_named_by_split(packages_of(data), self.max_examples), split, data)


@lru_cache(maxsize=2)
def _named_by_split(packages: tuple[str, ...], max_examples: int) -> dict[str, list[RelatedTexts]]:
    return divide_by_split(_named(modules_of(packages)), max_examples)


def _named(modules: Iterable[Module]) -> Iterator[tuple[Module, str, RelatedTexts]]:
    for module in modules:
        found: dict[str, RelatedTexts] = {}
        for definition in module.definitions():
            summary = next(passages(definition.docstring), "")
            name = definition.name
            private = any(part.startswith("_") for part in name.split("."))
            if not name or private or len(summary.split()) < _FEWEST_WORDS:
                continue
            words = " ".join(_WORD.findall(name)).lower()
            query = f"{module.name.partition('.')[0]} {words}"
            columns = {"module": module.name}
            pair = RelatedTexts((query, summary), True, definition.where, columns)
            found.setdefault(summary.lower(), pair)
        for text, pair in evenly_spaced([*found.items()], _PER_MODULE):
            yield module, text, pair


_SPLITS = {"dev": (0,), "test": (1,)}
_OF = 20
_TITLE = re.compile(r"= .* =")
_TITLE_WORDS, _PARAGRAPH_WORDS = 12, 8
_MOST_CHARACTERS = 2000


class TextSearch(TextEmbedding):
    """Finds what stands below a title, or the paragraph after another, among all paragraphs."""

    divides_itself: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = (
        *("labels", "kind", "header", "query_column", "passage_column", "negative_columns"),
        *("score_column", "label_column"),
    )

    per_document: int = Field(default=4, ge=1, description="pairs of a document, at most")
    max_examples: int = Field(default=100_000, ge=100, description="training pairs, at most")

    def examples(self, data: str | Path, split: str) -> list[RelatedTexts]:
        """Pairs of the documents of a text file, in which a blank line divides them, or of a table.

        Of a table each record is a document, a paragraph a line. One file is divided: a twentieth
        of the documents is dev, another is test, by a hash of their text; a folder has a file for
        each split. Raises `TaskDataError` where no document has two paragraphs.
        """
        is_divided = not is_on_hub(data) and Path(data).is_file()
        wanted = _SPLITS.get(split, range(2, _OF)) if is_divided else range(_OF)
        room = self.max_examples if split == "train" else self.max_examples // 10
        chosen, found = CounterHash("text search"), list[RelatedTexts]()
        for document in self._documents(data, split):
            if int(chosen.below(_OF, *_key(document))[0]) in wanted:
                pairs = list(_pairs_of(document))
                found += evenly_spaced(pairs, self.per_document)[: room - len(found)]
            if len(found) >= room:
                break
        if not found:
            what = f"no documents of two paragraphs for {split}"
            raise TaskDataError(what, str(data), "give more text, a paragraph a line")
        return found

    def _documents(self, data: str | Path, split: str) -> Iterator[str]:
        if not is_on_hub(data):
            path = split_file(data, split, (".txt", *TABLE_SUFFIXES), OTHER_SUFFIXES)
            if path.suffix == ".txt":
                yield from _divided(path)
                return
        for record in read_split(data, split):
            yield text_of(record, self.text_column)


def _divided(path: Path) -> Iterator[str]:
    """The documents of a text file, stripped lines; a blank line, or a `= title =`, is between."""
    lines: list[str] = []
    with open_text(path, TaskDataError) as file:
        for line in file:
            text = line.strip()
            if lines and (not text or _TITLE.fullmatch(text)):
                yield "\n".join(lines)
                lines = []
            if text:
                lines.append(text.strip("= "))
    if lines:
        yield "\n".join(lines)


def _key(document: str) -> tuple[int, int]:
    digest = hashlib.blake2b(document.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest[:4]), int.from_bytes(digest[4:])


def _pairs_of(document: str) -> Iterator[RelatedTexts]:
    """The title with the first paragraph, if it begins with one; else paragraphs and the next."""
    lines = [line[:_MOST_CHARACTERS] for line in document.split("\n")]
    first = lines[0].split()
    has_title = len(first) <= _TITLE_WORDS and lines[0][-1:] not in ".!?:;,"
    paragraphs = [line for line in lines[has_title:] if len(line.split()) >= _PARAGRAPH_WORDS]
    if paragraphs and has_title:
        yield RelatedTexts((lines[0], paragraphs[0]), True, lines[0][:60])
    for before, after in pairwise(paragraphs):
        yield RelatedTexts((before, after), True, before[:60])

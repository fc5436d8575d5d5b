"""Search tasks whose pairs of query and passage are made from other data.

- `squad_search`: SQuAD's questions, and the paragraphs that answer them
- `docs_search`: the names of functions and classes of installed packages, and what they do
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
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
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding

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

"""Which library does a passage of documentation document? Classification without a download.

The labels are the packages asked for, and for the standard library its own packages (asyncio,
email …). The library's own name is replaced in its passages: it would give the answer away.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.documentation.definitions import (
    Module,
    divide_by_split,
    examples_of,
    modules_of,
    packages_of,
    some_of,
)
from bert_core.tasks.documentation.passages import passages
from bert_core.tasks.tables import TaskDataError

OTHER_NAMES = {
    "matplotlib": ("pyplot", "plt", "mpl"),
    "networkx": ("nx",),
    "numpy": ("np",),
    "pandas": ("pd",),
    "sklearn": ("scikit-learn", "scikit"),
    "tkinter": ("tk", "tcl"),
    "torch": ("pytorch",),
}
"""What libraries are called in text besides the name that is imported."""

INSTEAD = "library"
"""What stands in a passage where its library was named."""

_PER_MODULE = 40
_FEWEST = {"train": 60, "dev": 8, "test": 0}
"""A library with fewer passages than this is left out."""

_PROSE = re.compile(rf"(?:[A-Z]|{INSTEAD} )[^=|{{}}<>]*[.!?]")
_FEWEST_WORDS = 8


class LibraryOfPassage(Classification):
    """Tells libraries apart by what their documentation says."""

    unused: ClassVar[tuple[str, ...]] = (
        *("kind", "text_column", "second_column", "label_column"),
        *("header", "skip_ragged", "max_skipped"),
    )

    max_examples: int = Field(
        default=4000, ge=120, description="passages to train with, of all libraries together"
    )

    def examples(self, data: str | Path, split: str) -> list[Text]:
        """Passages of the documentation of the packages of `docs://…`.

        Raises `TaskDataError` where fewer than two libraries have passages enough.
        """
        splits = _passages_by_split(packages_of(data), self.max_examples)
        if len({each.answer for each in splits["train"]}) < 2:
            raise TaskDataError(
                "fewer than two libraries with documentation enough",
                str(data),
                "name more packages, or raise max_examples",
            )
        return examples_of(splits, split, data)


@lru_cache(maxsize=2)
def _passages_by_split(packages: tuple[str, ...], max_examples: int) -> dict[str, list[Text]]:
    modules: dict[str, list[Module]] = defaultdict(list)
    for module in modules_of(packages):
        modules[_library(module)].append(module)
    candidates = [name for name, some in modules.items() if _may_be_split(some)]
    candidates.sort(key=lambda name: (len(modules[name]), name))
    candidates = candidates[-(max_examples // _FEWEST["train"]) :]  # fewer, rather than all too few
    owners: dict[str, str] = {}
    splits: dict[str, list[Text]] = {split: [] for split in _FEWEST}
    for number, library in enumerate(candidates):  # what small ones leave, larger ones take
        room = (max_examples - len(splits["train"])) // (len(candidates) - number)
        found = divide_by_split(_labelled(library, modules[library]), room, owners)
        if all(len(found[split]) >= fewest for split, fewest in _FEWEST.items()):
            for split, texts in found.items():
                splits[split] += texts
    return splits


def _library(module: Module) -> str:
    """The label: the package, or of the standard library the package within it."""
    return module.name.partition(".")[0] if module.package == "stdlib" else module.package


def _may_be_split(modules: Iterable[Module]) -> bool:
    """Whether there are modules to learn from and others to be judged by."""
    return {"train", "dev"} <= {module.split for module in modules}


def _labelled(library: str, modules: Iterable[Module]) -> Iterator[tuple[Module, str, Text]]:
    name = _name_pattern(library)
    for module in modules:
        found = {
            masked.lower(): Text(masked, None, library, definition.where, {"module": module.name})
            for definition in module.definitions()
            for passage in passages(definition.docstring)
            if _is_prose(masked := name.sub(INSTEAD, passage))
        }
        for text, example in some_of([*found.items()], _PER_MODULE):
            yield module, text, example


def _name_pattern(library: str) -> re.Pattern[str]:
    """Matches the names of a library, alone, in the plural, or as a part of an identifier."""
    names = sorted((library, *OTHER_NAMES.get(library, ())), key=len, reverse=True)
    return re.compile(rf"(?<![A-Za-z])(?i:{'|'.join(map(re.escape, names))})(?:s\b|(?![a-z]))")


def _is_prose(passage: str) -> bool:
    """Whether a passage is made of sentences rather than of code, tables or lists."""
    return _PROSE.fullmatch(passage) is not None and len(passage.split()) >= _FEWEST_WORDS

"""An address `docs://…` goes in; documented modules, classes and functions come out.

Read with `ast`, never imported. The name of a module decides the split that all its text is in.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from bert_core.tasks.tables import TaskDataError
from bert_core.text.documentation import (
    Documented,
    documentation_modules,
    documented_nodes,
    parse_source,
)

ADDRESS = "docs://"

ALWAYS_THERE = (
    "stdlib",
    "matplotlib",
    "mlflow",
    "networkx",
    "numpy",
    "pandas",
    "ray",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "sympy",
    "torch",
)
"""What `docs://` alone stands for: Python's own documentation and that of what Bertline needs."""

PARTS = {"train": 4, "dev": 1, "test": 1}
"""How modules are divided, and examples too: then all splits are full after as much reading."""

_OTHERS_CODE = {"thirdparty_files", "thirdparty", "third_party", "vendor", "_vendor", "externals"}
"""Folders in which packages keep copies of others."""

_MOST_BYTES = 200_000
"""Larger modules are left out: they take long to parse, and there are enough others."""

Example = TypeVar("Example")


@dataclass(frozen=True)
class Module:
    """A source file: the package it was asked for by, its dotted name, its place."""

    package: str
    name: str
    path: Path

    @cached_property
    def split(self) -> str:
        """The split that the hash of the name decides."""
        place = _fraction("split", self.name) * sum(PARTS.values())
        ends = accumulate(PARTS.values())
        return next(split for split, end in zip(PARTS, ends, strict=True) if place < end)

    def definitions(self, holding: re.Pattern[bytes] | None = None) -> Iterator["Definition"]:
        """Yields what has a docstring, in the order of the source.

        Nothing if the source does not parse, or does not hold what it is asked to hold.
        """
        source = self.path.read_bytes()
        if holding is not None and not holding.search(source):
            return
        tree = parse_source(source)
        if tree is None:
            return
        classes = frozenset(each.name for each in tree.body if isinstance(each, ast.ClassDef))
        for name, node, docstring in documented_nodes(tree):
            yield Definition(self, name, docstring, node, classes)


@dataclass(frozen=True)
class Definition:
    """A documented class or function, or a module itself, whose name is empty.

    `classes` are those that its module defines.
    """

    module: Module
    name: str
    docstring: str
    node: Documented
    classes: frozenset[str]

    @property
    def where(self) -> str:
        """The dotted name from the top."""
        return f"{self.module.name}.{self.name}".rstrip(".")

    @cached_property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function whose parameters the docstring may document: of a class its `__init__`."""
        if isinstance(self.node, ast.ClassDef):
            methods = [each for each in self.node.body if isinstance(each, ast.FunctionDef)]
            return next((each for each in methods if each.name == "__init__"), None)
        return None if isinstance(self.node, ast.Module) else self.node

    @cached_property
    def arguments(self) -> tuple[ast.arg, ...]:
        """The parameters, but for `self` and `cls`."""
        if self.function is None:
            return ()
        given = self.function.args
        several = [each for each in (given.vararg, given.kwarg) if each is not None]
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
        return tuple(each for each in every if each.arg not in ("self", "cls"))


def packages_of(data: str | Path) -> tuple[str, ...]:
    """The packages of `docs://numpy,torch`; of `docs://` those of ALWAYS_THERE that are there.

    Raises `TaskDataError` for anything else, and `DocumentationError` for a package that is
    named but not installed.
    """
    address = str(data)
    if not address.startswith(ADDRESS):
        raise TaskDataError(
            "no address of documentation", address, "give docs:// or docs://numpy,torch as --data"
        )
    names = [name.strip() for name in address.removeprefix(ADDRESS).split(",") if name.strip()]
    if names:
        return tuple(dict.fromkeys(names))
    return tuple(
        name for name in ALWAYS_THERE if name == "stdlib" or PathFinder.find_spec(name) is not None
    )


def modules_of(packages: Iterable[str]) -> list[Module]:
    """All modules of the packages, shuffled: always into the same order."""
    modules = [
        Module(package, name, path)
        for package in packages
        for name, path in documentation_modules(package).items()
        if not _OTHERS_CODE & set(path.parts) and path.stat().st_size < _MOST_BYTES
    ]
    return sorted(modules, key=lambda module: _fraction("order", module.name))


def divide_by_split(
    examples: Iterable[tuple[Module, str, Example]],
    max_examples: int,
    owners: dict[str, str] | None = None,
) -> dict[str, list[Example]]:
    """The examples of each split: at most `max_examples` to train, a quarter of it each for others.

    With an example come its module and its text. A text belongs to the module that it was met in
    first, in `owners`, and is left out of others: modules quote each other. Stops reading when
    nothing is missing.
    """
    owners = {} if owners is None else owners
    room = {split: _room(split, max_examples) for split in PARTS}
    found: dict[str, list[Example]] = {split: [] for split in PARTS}
    for module, text, example in examples:
        taken = found[module.split]
        if len(taken) < room[module.split] and owners.setdefault(text, module.name) == module.name:
            taken.append(example)
            if all(len(found[split]) == room[split] for split in PARTS):
                break
    return found


def some_of(examples: Sequence[Example], at_most: int) -> Sequence[Example]:
    """At most this many of the examples, evenly spread over all of them."""
    return examples[:: max(1, -(-len(examples) // at_most))] if at_most else examples[:0]


def examples_of(splits: dict[str, list[Example]], split: str, data: str | Path) -> list[Example]:
    """The examples of a split; raises `TaskDataError` where there are none."""
    if not splits.get(split):
        raise TaskDataError(f"no examples for {split}", str(data), "name more packages")
    return list(splits[split])


def _room(split: str, max_examples: int) -> int:
    return -(-max_examples * PARTS[split] // PARTS["train"])


def _fraction(purpose: str, name: str) -> float:
    """A number in [0, 1) that is a function of the name, another for each purpose."""
    digest = hashlib.sha256(f"{purpose}/{name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48

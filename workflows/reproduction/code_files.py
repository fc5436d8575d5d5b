"""The code that a run is trained by: a hash for each file, and which of them training reads.

A commit alone does not say it: most commits change nothing that a run computes with, and code that
was changed since its commit is not in it.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bert_core.disk import file_sha256
from bert_core.errors import UserError
from bert_core.strict_files import parse_json, read_bounded
from workflows.runs.folder import write_atomically
from workflows.runs.tracker import code_tags

ROOT = Path(__file__).parents[2]
"""The folder that the packages lie in."""
PACKAGES = ("bert_core", "workflows")
WORKERS = (
    *("workflows.training.worker_main", "workflows.clusters.workers"),
    *("workflows.pretraining.worker", "workflows.finetuning.worker"),
)
"""The modules that training begins in: what they import, directly or not, is what it reads."""


@dataclass(frozen=True)
class CodeState:
    """One state of the code: its commit, None outside of git, and the sha256 of each file."""

    git_commit: str | None
    git_dirty: bool | None
    files: dict[str, str]

    @classmethod
    def now(cls, root: Path = ROOT) -> Self:
        """The state of the code that runs here."""
        tags = code_tags(root)
        dirty = tags.get("git.dirty")
        return cls(
            tags.get("mlflow.source.git.commit"),
            None if dirty is None else dirty == "true",
            {name: file_sha256(path) for name, path in sorted(_files(root))},
        )

    @property
    def sha256(self) -> str:
        """One hash of all files."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()

    def changed(self, other: "CodeState", names: set[str]) -> list[str]:
        """Those of `names` whose files are other ones in the two states, or in one alone."""
        return sorted(name for name in names if self.files.get(name) != other.files.get(name))


def note_code(path: Path) -> None:
    """Adds the state of the code to a file of them, if the last one there has other files."""
    states, state = read_code(path), CodeState.now()
    if not states or states[-1].files != state.files:
        content = [asdict(one) for one in (*states, state)]
        write_atomically(path, json.dumps(content, indent=1))


def read_code(path: Path) -> list[CodeState]:
    """The states that a run was started under, oldest first; none where there is no such file."""
    try:
        return parse_code(read_bounded(path).decode(errors="replace"))
    except UserError:
        return []


def parse_code(text: str) -> list[CodeState]:
    """What `note_code` has written; raises nothing, for a damaged file holds no state."""
    try:
        return [CodeState(**one) for one in parse_json(text.encode(), "the states of the code")]
    except (UserError, TypeError):
        return []


def training_files(root: Path = ROOT) -> set[str]:
    """The names of the files that decide what a run computes: all that its workers import.

    In a state where such a file is missing or another, one that imports it is another too, unless
    it is one of these.
    """
    modules = {_module(name): path for name, path in _files(root)}
    imported: set[str] = set()
    waiting = list(WORKERS)
    while waiting:
        module = waiting.pop()
        if module in modules and module not in imported:
            imported.add(module)
            waiting.append(module.rpartition(".")[0])  # a package's __init__ runs too
            waiting += _imported(ast.parse(modules[module].read_text(encoding="utf-8")))
    return {modules[module].relative_to(root).as_posix() for module in imported}


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            yield path.relative_to(root).as_posix(), path


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.AST) -> Iterator[str]:
    """Whatever may be a module among the names that are imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

"""Documentation that is already on the machine: a package's name goes in, documents come out.

Read with `ast`, never imported: docstrings, and for the standard library pydoc's topics too.
"""

import ast
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from platform import python_version

from bert_core.errors import UserError

_LEFT_OUT = {"__pycache__", "site-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
_STARTS_A_LINE = re.compile(r">>>|\.\.\.|[-*+•|=~#:@]|\d+[.)]\s|\.\. ")


class DocumentationError(UserError):
    """A package that is not installed or has no Python source."""


def documentation_files(name: str) -> list[Path]:
    """The source files of an installed package, or of the standard library for `stdlib`.

    Sorted by path; tests are left out. Raises `DocumentationError` if there are none.
    """
    if name == "stdlib":
        folder = Path(sysconfig.get_path("stdlib"))
        return _source_files(folder)
    locations: list[str] | None = None
    spec = None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, locations) if part else None
        locations = list(spec.submodule_search_locations or []) if spec else []
        if spec is None:
            break
    if spec is None:
        remedy = "give stdlib or the import name of an installed package"
        raise DocumentationError("no such package", f"docs://{name}", remedy)
    files = [path for each in sorted(locations or []) for path in _source_files(Path(each))]
    if not files and spec.origin and spec.origin.endswith(".py"):
        files = [Path(spec.origin)]
    if not files:
        raise DocumentationError("no Python source", f"docs://{name}", "name another package")
    return files


def _source_files(folder: Path) -> list[Path]:
    every = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts)
    return [path for path in every if not _LEFT_OUT & set(path.relative_to(folder).parts)]


def documentation_version(name: str) -> str:
    """The version of the package, or of Python for the standard library; empty if unknown."""
    if name == "stdlib":
        return python_version()
    top = name.partition(".")[0]
    for distribution in [*packages_distributions().get(top, []), top]:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def read_documentation(name: str, dropped: Counter[str]) -> Iterator[str]:
    """Yields a document per module, one paragraph a line, and one per pydoc topic.

    Modules without a docstring, and files that do not parse, are counted in `dropped`.
    """
    for path in documentation_files(name):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's sources
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            dropped["modules_that_do_not_parse"] += 1
            continue
        if path.parts[-2:] == ("pydoc_data", "topics.py"):
            yield from _topics(tree)
            continue
        paragraphs = [line for text in _docstrings(tree) for line in _paragraphs(text)]
        if paragraphs:
            yield "\n".join(paragraphs)
        else:
            dropped["modules_without_docstring"] += 1


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and functions in the order of the source."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, documented):
            text = ast.get_docstring(node)
            if text:
                yield text
        pending.extend(reversed(list(ast.iter_child_nodes(node))))


def _topics(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for text in ast.literal_eval(node.value).values():
                yield "\n".join(_paragraphs(text))


def _paragraphs(text: str) -> Iterator[str]:
    """Joins the lines that were only wrapped, so that sentences are whole.

    A line goes on with the one before if it is indented alike and does not look like an item.
    """
    held: list[str] = []
    indentation = 0
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        here = len(line) - len(line.lstrip())
        joins = stripped and here == indentation and not _STARTS_A_LINE.match(stripped)
        if held and (not joins or held[-1].startswith(">>>")):
            yield " ".join(held)
            held = []
        if stripped:
            held.append(stripped)
            indentation = here

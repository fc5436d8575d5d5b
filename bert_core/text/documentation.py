"""Reads documentation that is already on the machine: the docstrings of installed packages.

Read with `ast`, never imported: docstrings, and for the standard library pydoc's topics too.
"""

import ast
import os
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
_MAY_DEFINE = (ast.stmt, ast.excepthandler, ast.match_case)
"""Syntax that can hold classes and functions; expressions cannot."""

_STARTS_A_LINE = re.compile(r">>>|\.\.\.|[-*+•|=~#:@]|\d+[.)]\s|\.\. ")


class DocumentationError(UserError):
    """A package that is not installed or has no Python source."""


def documentation_files(name: str) -> list[Path]:
    """The source files of an installed package, or of the standard library for `stdlib`.

    Sorted by path; tests are left out. Raises `DocumentationError` if there are none.
    """
    return list(documentation_modules(name).values())


def documentation_modules(name: str) -> dict[str, Path]:
    """`documentation_files` by the dotted names of their modules."""
    if name == "stdlib":
        return _modules_in(Path(sysconfig.get_path("stdlib")), ())
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
    modules: dict[str, Path] = {}
    for location in sorted(locations or []):
        modules |= _modules_in(Path(location), tuple(name.split(".")))
    if not modules and spec.origin and spec.origin.endswith(".py"):
        modules = {name: Path(spec.origin)}
    if not modules:
        raise DocumentationError("no Python source", f"docs://{name}", "name another package")
    return modules


def _modules_in(folder: Path, package: tuple[str, ...]) -> dict[str, Path]:
    files_found: list[tuple[str, ...]] = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        inside = Path(root).relative_to(folder).parts
        files_found += [(*inside, name) for name in files if name.endswith(".py")]
    names = [".".join((*package, *parts))[: -len(".py")] for parts in sorted(files_found)]
    return {
        name.removesuffix(".__init__"): folder.joinpath(*parts)
        for name, parts in zip(names, sorted(files_found), strict=True)
    }


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
        tree = parse_source(path.read_bytes())
        if tree is None:
            dropped["modules_that_do_not_parse"] += 1
            continue
        if path.parts[-2:] == ("pydoc_data", "topics.py"):
            yield from _topics(tree)
            continue
        docstrings = [docstring for _, _, docstring in documented_nodes(tree)]
        lines = [line for docstring in docstrings for line in paragraphs(docstring)]
        if lines:
            yield "\n".join(lines)
        else:
            dropped["modules_without_docstring"] += 1


def parse_source(source: bytes) -> ast.Module | None:
    """The syntax tree of a module; None where it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's sources
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented_nodes(tree: ast.Module) -> Iterator[tuple[str, Documented, str]]:
    """Yields the module, its classes and functions that have a docstring, in their order.

    Each with its name within the module, empty for the module itself, and the docstring.
    """
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        scope, node = pending.pop()
        if isinstance(node, Documented):
            if not isinstance(node, ast.Module):
                scope = f"{scope}.{node.name}".lstrip(".")
            docstring = ast.get_docstring(node)
            if docstring:
                yield scope, node, docstring
        inside = [child for child in ast.iter_child_nodes(node) if isinstance(child, _MAY_DEFINE)]
        pending.extend((scope, child) for child in reversed(inside))


def _topics(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for text in ast.literal_eval(node.value).values():
                yield "\n".join(paragraphs(text))


def paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring: joins the lines that were only wrapped.

    A line continues the one before if it is indented alike and does not look like a list item.
    """
    lines: list[str] = []
    indentation = 0
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        joins = stripped and indent == indentation and not _STARTS_A_LINE.match(stripped)
        if lines and (not joins or lines[-1].startswith(">>>")):
            yield " ".join(lines)
            lines = []
        if stripped:
            lines.append(stripped)
            indentation = indent

"""Docstrings of installed packages: what `docs://…` names, as definitions, passages and parameters.

Source is parsed with `ast`, never imported. The name of a module decides which split all its text
is in. Lists of parameters are read in NumPy's and Google's style, and as fields of Sphinx.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from itertools import accumulate, dropwhile, pairwise, takewhile
from pathlib import Path
from typing import TypeVar

from bert_core.errors import NoSuchSplitError
from bert_core.tasks.tables import TaskDataError
from bert_core.text.documentation import (
    Documented,
    documentation_modules,
    documented_nodes,
    paragraphs,
    parse_source,
)
from bert_core.text.encoding import split_sentences

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
"""The packages of `docs://` alone: the standard library and the dependencies of Bertline."""

PARTS = {"train": 4, "dev": 1, "test": 1}
"""How modules are divided, and examples too: then all splits are full after as much reading."""

_OTHERS_CODE = {"thirdparty_files", "thirdparty", "third_party", "vendor", "_vendor", "externals"}
"""Folders in which packages keep copies of others."""

_MOST_BYTES = 200_000
"""Larger modules are left out: they take long to parse, and there are enough others."""

Example = TypeVar("Example")


@dataclass(frozen=True)
class Module:
    """A source file: the requested package, its dotted name, and its path."""

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
        """Yields the definitions that have a docstring, in source order.

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
            return next((method for method in methods if method.name == "__init__"), None)
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
            "not a documentation address", address, "give docs:// or docs://numpy,torch as --data"
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
    """Divides examples by split: `max_examples` to train, a quarter of that for each other split.

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


def evenly_spaced(examples: Sequence[Example], at_most: int) -> Sequence[Example]:
    """At most this many of the examples, evenly spread over all of them."""
    return examples[:: max(1, -(-len(examples) // at_most))] if at_most else examples[:0]


def examples_of(splits: dict[str, list[Example]], split: str, data: str | Path) -> list[Example]:
    """The examples of a split; raises `TaskDataError` where there are none."""
    if not splits.get(split):
        raise NoSuchSplitError(f"no examples for {split}", str(data), "name more packages")
    return list(splits[split])


def _room(split: str, max_examples: int) -> int:
    return -(-max_examples * PARTS[split] // PARTS["train"])


def _fraction(purpose: str, name: str) -> float:
    """A number in [0, 1) that is a function of the name, another for each purpose."""
    digest = hashlib.sha256(f"{purpose}/{name}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


_ROLE = re.compile(r":[a-z]+(?::[a-z]+)?:`[~!.]?([^`<]*?)(?: <[^`>]*>)?`")
_SHORT_REFERENCE = re.compile(r"`[~!.]+(?=\w)")
_UNDERLINED = re.compile(r"^.+\n[ \t]*([-=~^*])\1{2,}[ \t]*$", re.MULTILINE)
_HEADING = re.compile(r"^[ \t]*[A-Z]\w+(?: [A-Za-z]+)?:{1,2}[ \t]*$", re.MULTILINE)
_ENTRY = re.compile(r"\*{0,2}\w+(?:, \*{0,2}\w+)* ?: \S|\*{0,2}\w+(?:, \*{0,2}\w+)*$")
_ENOUGH_WORDS = 25
_MOST_WORDS = 64
_MOST_SENTENCES = 3


def without_markup(docstring: str) -> str:
    """The docstring without the roles of Sphinx, :class:`x` for x, and with single backquotes."""
    return _SHORT_REFERENCE.sub("`", _ROLE.sub(r"\1", docstring).replace("``", "`"))


def passages(docstring: str) -> Iterator[str]:
    """Yields runs of sentences of a paragraph, until they are three or have words enough.

    The first line of an entry in a list of parameters goes together with its description.
    """
    entry = ""
    prose = _HEADING.sub("", _UNDERLINED.sub("", without_markup(docstring)))
    for paragraph in paragraphs(prose):
        if _ENTRY.match(paragraph):
            if entry:
                yield entry
            entry = paragraph
            continue
        yield from _runs([*([entry] if entry else []), *split_sentences(paragraph)])
        entry = ""
    if entry:
        yield entry


def _runs(sentences: list[str]) -> Iterator[str]:
    held: list[str] = []
    num_words = 0
    for sentence in sentences:
        more = len(sentence.split())
        enough = len(held) == _MOST_SENTENCES or num_words >= _ENOUGH_WORDS
        if held and (enough or num_words + more > _MOST_WORDS):
            yield " ".join(held)
            held, num_words = [], 0
        held.append(sentence)
        num_words += more
    if held:
        yield " ".join(held)


_NUMPY_HEADER = re.compile(r"(?:Other )?Parameters?\n-{3,} *\n")
_NUMPY_ENTRY = re.compile(r"(?P<name>\*{0,2}\w+) ?(?:: ?(?P<type>\S.*))?")
_ANY_NUMPY_HEADER = re.compile(r"^\w[\w ]*\n-{3,} *$", re.MULTILINE)
_GOOGLE_HEADER = re.compile(r"(?:Args|Arguments|Keyword Args|Keyword Arguments|Parameters): *\n")
_GOOGLE_ENTRY = re.compile(
    r"(?P<name>\*{0,2}\w+) ?(?:\((?P<type>[^()]*(?:\([^()]*\)[^()]*)*)\))?:(?: (?P<text>.*))?"
)
_SPHINX_ENTRY = re.compile(r":param (?:(?P<type>[\w.\[\], ]+) )?(?P<name>\*{0,2}\w+):(?P<text>.*)")
_TYPE_AFTER = re.compile(
    r"optional|keyword-only|required|default.*|by default.*|= ?\S+", re.IGNORECASE
)

HEADERS = re.compile(
    rb"Parameters?[^\S\n]*\n\s*---|^[ \t]*(?:Keyword )?Arg(?:ument)?s: *$|:param ", re.MULTILINE
)
"""What the source of a module holds in which there is a list of parameters."""


@dataclass(frozen=True)
class Entry:
    """The documentation of one parameter.

    `text` is the entry with its wrapped lines joined; `type` and `description`
    are stretches of it, given by their first character and that after the last, or None.
    """

    name: str
    text: str
    type: tuple[int, int] | None
    description: tuple[int, int] | None


def parameter_entries(docstring: str) -> list[Entry]:
    """The documented parameters, in their order; none where there is no list of them."""
    for read in (_numpy_entries, _google_entries, _sphinx_entries):
        entries = list(read(docstring))
        if entries:
            return entries
    return []


def _numpy_entries(docstring: str) -> Iterator[Entry]:
    for header in _NUMPY_HEADER.finditer(docstring):
        following = _ANY_NUMPY_HEADER.search(docstring, header.end())
        section = docstring[header.end() : following.start() if following else None]
        for head, lines in _items(section.splitlines()):
            found = _NUMPY_ENTRY.fullmatch(head)
            if found:
                yield _entry(found, "\n", _first_paragraph(lines))


def _google_entries(docstring: str) -> Iterator[Entry]:
    for header in _GOOGLE_HEADER.finditer(docstring):
        following = docstring[header.end() :].splitlines()
        section = takewhile(lambda line: not line.strip() or line[0].isspace(), following)
        for head, lines in _items(list(section)):
            found = _GOOGLE_ENTRY.fullmatch(head)
            if found:
                yield _entry(found, " ", _first_paragraph(lines, found["text"] or ""))


def _sphinx_entries(docstring: str) -> Iterator[Entry]:
    for head, lines in _items(docstring.splitlines()):
        found = _SPHINX_ENTRY.fullmatch(head)
        if found:
            yield _entry(found, " ", _first_paragraph(lines, found["text"]))


def _items(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each of the lines that are indented least, stripped, with those below it."""
    least = min((_depth(line) for line in lines if line.strip()), default=0)
    heads = [at for at, line in enumerate(lines) if line.strip() and _depth(line) == least]
    for begin, end in pairwise([*heads, len(lines)]):
        yield lines[begin].strip(), lines[begin + 1 : end]


def _first_paragraph(lines: list[str], begun: str = "") -> str:
    """`begun` and the lines after it, up to a blank line or another indentation.

    Empty where the text continues after that in the middle of a sentence.
    """
    lines = lines if begun else list(dropwhile(lambda line: not line.strip(), lines))
    depth = _depth(lines[0]) if lines else 0
    kept = list(takewhile(lambda line: line.strip() and _depth(line) == depth, lines))
    paragraph = " ".join([begun, *kept] if begun else kept)
    goes_on = any(line.strip() for line in lines[len(kept) :])
    return "" if goes_on and not paragraph.rstrip().endswith(".") else " ".join(paragraph.split())


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _entry(head: re.Match[str], between: str, description: str) -> Entry:
    """An entry from a matched first line and a description; only the type of its annotation."""
    start_of_text = head.start("text") if "text" in head.re.groupindex else -1
    opening = (head.string[:start_of_text] if start_of_text >= 0 else head.string).rstrip()
    text = f"{opening}{between}{description}".rstrip()
    described = (len(text) - len(description), len(text)) if description else None
    typed = None
    if head["type"]:
        stated = _TYPE_AFTER.split(head["type"], maxsplit=1)[0].strip(" ,`")
        start = text.find(stated, head.start("type"))
        typed = (start, start + len(stated)) if stated else None
    return Entry(head["name"].lstrip("*"), text, typed, described)

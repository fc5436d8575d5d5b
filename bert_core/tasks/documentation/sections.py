"""A docstring goes in; the entries of its list of parameters come out, each a stretch of text.

Reads the three styles in use: NumPy's, Google's, and the fields of Sphinx.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, pairwise, takewhile

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
    """What a docstring says of one parameter.

    `text` is the entry as it stands there, with its wrapped lines joined; `type` and `description`
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
    """What was `begun` and the lines after it, up to a blank one or another indentation.

    Empty where the text goes on after that in the middle of a sentence.
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
    """An entry of a matched first line and a description; of the type only what says it."""
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

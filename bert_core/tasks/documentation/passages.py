"""A docstring goes in; passages of one to three sentences come out, without markup or headings."""

import re
from collections.abc import Iterator

from bert_core.text.documentation import paragraphs
from bert_core.text.encoding import split_sentences

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

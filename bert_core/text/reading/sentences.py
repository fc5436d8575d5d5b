"""A document goes in, its sentences come out; docs/decisions.md says why by sentencex."""

import re
from collections.abc import Iterator
from itertools import accumulate

_MOST_CHARACTERS = 1 << 14
_WIDE_SPACE = r"[^\S\x00-\x7f]"
_PERIOD_AFTER_WIDE_SPACE = re.compile(rf"\.(?<={_WIDE_SPACE}\.)")
_WIDE_SPACES = re.compile(_WIDE_SPACE)


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits every line of the text into sentences, stripped and never empty.

    `language` is a code such as `en`; sentencex falls back to a related language, or English.
    """
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] - native module

    found: list[str] = []
    for line in text.split("\n"):
        is_usual = len(line) <= _MOST_CHARACTERS and not _PERIOD_AFTER_WIDE_SPACE.search(line)
        found += segment(language, line) if is_usual else _sentences(line, language)
    return [stripped for sentence in found if (stripped := sentence.strip())]


def _sentences(line: str, language: str) -> Iterator[str]:
    """The sentences of a line, in time that grows with its length alone.

    sentencex looks for the end of each quotation in all it is given: a megabyte of quotation marks
    that nobody closes would take minutes. So it is given stretches of a long line; each begins
    with the last two sentences of the one before.
    """
    begin = 0
    while len(line) - begin > _MOST_CHARACTERS:
        ends = _ends(line, begin, begin + _MOST_CHARACTERS, language)
        for end in ends[:-2] or ends:  # what comes next may move the last end but one as well
            yield line[begin:end]
            begin = end
    for end in _ends(line, begin, len(line), language):
        yield line[begin:end]
        begin = end


def _ends(line: str, begin: int, end: int, language: str) -> list[int]:
    """Where the sentences of a stretch end."""
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] - native module

    stretch = line[begin:end]
    if _PERIOD_AFTER_WIDE_SPACE.search(stretch):
        # Version 1.0.32 panics where a space outside ASCII is between an initial and its period.
        stretch = _WIDE_SPACES.sub(" ", stretch)
    return list(accumulate(map(len, segment(language, stretch)), initial=begin))[1:]

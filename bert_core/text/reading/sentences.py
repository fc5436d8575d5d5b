"""A document goes in, its sentences come out; docs/decisions.md says why by sentencex."""

from collections.abc import Iterator

_AT_ONCE = 8192
"""Characters given to sentencex at once: its time grows with the square of a line's length."""


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits every line of the text into sentences, stripped and never empty.

    `language` is a code such as `en`; sentencex falls back to a related language, or English. A
    sentence of more than 8,192 characters is cut.
    """
    return [
        stripped
        for line in text.split("\n")
        for sentence in _sentences_of_line(line, language)
        if (stripped := sentence.strip())
    ]


def _sentences_of_line(line: str, language: str) -> Iterator[str]:
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] - native module

    begin = 0
    while len(line) - begin > _AT_ONCE:
        stretch = line[begin : begin + _AT_ONCE]
        sentences = segment(language, stretch)
        # Where the last one ends is not known yet: it is split again with what follows it.
        complete = sentences[:-1] if "".join(sentences) == stretch else []
        yield from complete or [stretch]
        begin += sum(map(len, complete)) or _AT_ONCE
    yield from segment(language, line[begin:])

"""A text -> its words, as the annotated corpora of named entities have them, and their characters.

Where words are given, as in CoNLL-2003, nothing has to be split. Raw text has to be split alike, or
a tagger sees words that it was never taught.
"""

import re
import unicodedata
from collections.abc import Iterator

_CHUNK = re.compile(
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]"  # stands without spaces
    r"|[^\s\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]+"
)
_CLITIC = re.compile(r"(?:['’](?:[sSmMdD]|ve|VE|re|RE|ll|LL)|(?<=[a-z])n['’]t|(?<=[A-Z])N['’]T)$")
_ABBREVIATION = re.compile(r"[^\W\d_]\.$|.*\w.*\..*\w\.$")
_SIGNED_NUMBER = re.compile(r"[.+-]\d")


def word_spans(text: str) -> list[tuple[int, int]]:
    """First character, and the one after the last, of each word of a text, from left to right.

    Words stand between spaces; a Chinese character is one of its own. Signs around a word are words
    of their own, equal ones together, as are `'s`, `n't` and their like; signs within it are part
    of it: `Franco-German`, `1.5`, `+31`. The period of an abbreviation belongs to it where it shows
    that it is one: `J.`, `U.N.`, not `Inc.`.
    """
    return [span for chunk in _CHUNK.finditer(text) for span in _words(text, *chunk.span())]


def _words(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The words between two spaces."""
    while begin < end and _is_sign(text[begin]) and not _is_one_word(text[begin:end]):
        first = begin
        while begin < end and text[begin] == text[first]:
            begin += 1
        yield first, begin
    after: list[tuple[int, int]] = []
    while begin < end:
        word = text[begin:end]
        clitic = _CLITIC.search(word)
        if clitic is not None and clitic.start():
            length = len(clitic.group())
        elif _is_sign(word[-1]) and not _ABBREVIATION.match(word):
            length = len(word) - len(word.rstrip(word[-1]))
        else:
            break
        after.append((end - length, end))
        end -= length
    if begin < end:
        yield begin, end
    yield from reversed(after)


def _is_one_word(chunk: str) -> bool:
    """Whether signs begin a word that they are part of."""
    return _CLITIC.fullmatch(chunk) is not None or _SIGNED_NUMBER.match(chunk) is not None


def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"

"""A text -> its words, as the annotated corpora of named entities have them, and their characters.

Where words are given, as in CoNLL-2003, nothing has to be split. Raw text has to be split alike, or
a tagger sees words that it was never taught.
"""

import re
from collections.abc import Iterator
from unicodedata import category

_IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_MARK = "\u0300"
"""Stands for any combining mark: it is part of the word whose letter it follows."""

_A = rf"[^\W_{_IDEOGRAPHS}]"  # a letter or digit
_CLITIC = rf"['’](?:[sSmMdD]|ve|VE|re|RE|ll|LL)(?![\w{_MARK}])"
_IN_ADDRESS = r"[!#-&+-;=?-Z_a-z~]*[#-&+\-/-9=@-Za-z]"  # an address ends before a sentence's signs

_PREFIX = r"[משהוכלב]{1,3}"  # Hebrew for "the", "in", "from" …, written without a space
_QUOTATION = "|".join(  # of two letters or more, as an acronym has one after its sign
    rf"{sign}[א-ת]{{2}}(?:[^\n{sign}]|(?<=[א-ת]){sign}(?=[א-ת])){{0,98}}(?<![\s(\[]){sign}(?![א-ת])"
    for sign in '"״'
)

# Every repetition is of one character at a time, and in lookarounds short: the time is linear.
_WORD = re.compile(
    rf"(?i:https?|ftp)://{_IN_ADDRESS}|www\.{_IN_ADDRESS}"
    rf"|(?<=\S){_CLITIC}|(?<!\S){_CLITIC}(?!\S)"
    r"|(?m:^)\d{1,2}\.(?=\s)"  # the number of a heading
    rf"|(?<![\w{_MARK}]){_PREFIX}(?={_QUOTATION})"
    rf"|(?P<word>(?:(?<![\w{_MARK}])[.+-](?=\d))?{_A}"
    rf"(?:{_A}|{_MARK}"
    rf"|[-‐‑־_@](?={_A})"  # Franco-German, a_b, an e-mail address
    rf"|(?!{_CLITIC})['’](?={_A})"  # O'Neill
    rf"|\.(?=-?{_A})"  # 1.5, U.S.-led
    rf"|(?<=\d)[,/:=٫٬](?=\d)"  # 1,000, 1/2, 10:30
    rf"|(?<=[A-Z\d])&(?=[A-Z\d])"  # AT&T
    rf'|(?<=[א-ת])["״׳](?=[א-ת])'  # Hebrew acronyms
    rf")*+)"
    rf"|[{_IDEOGRAPHS}]"  # stands without spaces
    rf"|([^\w\s{_MARK}])\2*|_+"  # a sign, or equal ones
)
_ABBREVIATION = re.compile(r"(?:^|[.-])[^\W\d_]{1,2}\.-?[^\W\d_]{1,2}$")  # U.N, Ph.D, J.-P
_PERIOD = re.compile(r"\.(?=[^\W\d_]{2})")
_NEGATIONS = ("n't", "n’t", "N'T", "N’T")

_FILLERS = r"\u115f\u1160\u3164\uffa0"  # letters, says Unicode
_INVISIBLE = re.compile(
    rf"[{_FILLERS}\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_ODD = re.compile(rf"[^\w\s!-~]|[{_FILLERS}]")
"""What has to be looked at closely: signs, marks and invisible characters outside ASCII."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """First character, and the one after the last, of each word of a text, from left to right.

    Words stand between spaces and signs; a Chinese character is one of its own. Signs are words
    of their own, equal ones together, as are `'s`, `n't` and their like. Signs that join what
    stands on both sides are part of a word: `Franco-German`, `1.5`, `O'Neill`, `+31`, and all
    those of an address. The sign in a Hebrew acronym (`צה"ל`) is part of it, not the one between a
    prefix and a quotation (`ה"ארץ"`). The period of an abbreviation belongs to it where it shows
    that it is one: `J.`, `U.N.`, not `Inc.`.

    Characters that nobody sees and BERT's tokenizer drops, such as byte order marks, zero-width
    spaces and variation selectors, do not divide words and are not at their edges. Marks that
    follow no letter are in no word.
    """
    return list(iter_word_spans(text))


def iter_word_spans(text: str) -> Iterator[tuple[int, int]]:
    """What `word_spans` gives, one after another."""
    hidden: list[int] = []
    shape = text
    if _ODD.search(text) is not None:
        shape = _ODD.sub(lambda found: _stand_in(found, hidden), text)
    if hidden:
        gone = set(hidden)
        places = [place for place in range(len(text)) if place not in gone]
        for begin, end in _spans(shape):
            yield places[begin], places[end - 1] + 1
    else:
        yield from _spans(shape)


def _spans(shape: str) -> Iterator[tuple[int, int]]:
    """The words of a text without invisible characters."""
    has_periods = _PERIOD.search(shape) is not None
    reached = 0
    for found in _WORD.finditer(shape):
        begin, end = found.span()
        if end <= reached:
            continue  # the period of an abbreviation
        if found.lastindex == 1:
            for period in _ends_of_sentences(shape, begin, end) if has_periods else ():
                yield begin, period
                yield period, period + 1
                begin = period + 1
            if shape[end : end + 1] == "." and _is_abbreviation(shape, begin, end):
                end += 1
            elif shape[end - 3 : end] in _NEGATIONS and end - begin > 3:
                yield begin, end - 3
                begin = end - 3
            reached = end
        yield begin, end


def visible_span(word: str) -> tuple[int, int]:
    """What is left of a word's characters without those at its edges that are in no word."""
    begin, end = 0, len(word)
    if _ODD.search(word) is None:
        return begin, end
    while begin < end and (is_invisible(word[begin]) or category(word[begin])[0] == "M"):
        begin += 1
    while begin < end and is_invisible(word[end - 1]):
        end -= 1
    return begin, end


def is_invisible(character: str) -> bool:
    """Whether a character has no looks of its own: controls, joiners, variation selectors, fillers.

    Neither have those without a name (unassigned, for private use); BERT's tokenizer drops both.
    """
    return category(character)[0] == "C" or _INVISIBLE.match(character) is not None


def _stand_in(found: re.Match[str], hidden: list[int]) -> str:
    """A sign itself, one mark for all, nothing for what is invisible, whose place is noted."""
    character = found[0]
    if is_invisible(character):
        hidden.append(found.start())
        return ""
    return _MARK if category(character)[0] == "M" else character


def _ends_of_sentences(text: str, begin: int, end: int) -> list[int]:
    """The periods in a word that no space follows, before a name: `in Berlin.Merkel`."""
    if "@" in text[begin:end]:
        return []
    places = [found.start() for found in _PERIOD.finditer(text, begin + 1, end)]
    return [
        place
        for place in places
        if text[place + 1].isupper()
        and text[place + 2].islower()
        # Not after an initial, J.Smith.
        and (text[place - 2 : place - 1].isalnum() or not text[place - 1].isalpha())
    ]


def _is_abbreviation(text: str, begin: int, end: int) -> bool:
    """Whether the period after a word is part of it."""
    if text[end + 1 : end + 2] == ".":
        return False
    if end - begin == 1:
        return text[begin].isalpha()
    return _ABBREVIATION.search(text[max(begin, end - 7) : end]) is not None

"""Where words begin, by what a vocabulary writes in its tokens.

`##ing`, `Ġhouse`, `▁house`, or, at the end of a word, `house</w>`.
"""

import re
from collections.abc import Iterable
from typing import Any
from unicodedata import category
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from bert_core.special_tokens import num_embeddings, special_tokens
from bert_core.tokenizer_file import steps_in

CONTINUING = "##"
"""How a word piece begins that continues a word, in vocabularies of WordPiece."""

BEGINS, _ENDS, SPACE = 1, 2, 4
"""A token that begins a word, one after which another begins, and one that is white space alone."""

Marks = npt.NDArray[np.uint8]


def begins_word(ids: npt.NDArray[np.integer[Any]], marks: Marks) -> npt.NDArray[np.bool_]:
    """Whether each token begins a word, bool [T], of tokens [T] in their order; the first does.

    A word is a run of letters and digits, or a sign, with the space before it. Where Chinese is
    written without spaces, each token of it is one. `marks` [vocabulary] are those of `word_marks`.
    """
    of_tokens = marks[ids]
    begins = (of_tokens & BEGINS) != 0
    begins[1:] |= (of_tokens[:-1] & _ENDS) != 0
    begins[1:] &= (of_tokens[:-1] & SPACE) == 0
    begins[:1] = True
    return begins


def word_marks(tokenizer: Tokenizer) -> Marks:
    """What each token of the vocabulary says of words, uint8 [vocabulary], for `begins_word`."""
    known = _KNOWN.get(tokenizer)
    if known is None:
        known = _KNOWN[tokenizer] = _read(tokenizer)
    return known


# Reading a vocabulary takes longer than cutting a short text up. It goes with its tokenizer.
_KNOWN: WeakKeyDictionary[Tokenizer, Marks] = WeakKeyDictionary()


def _read(tokenizer: Tokenizer) -> Marks:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    marks = np.full(num_embeddings(tokenizer), BEGINS, dtype=np.uint8)
    mark = space_mark(tokenizer)
    special = set(special_tokens(tokenizer).all)
    if ending := word_ending(tokenizer):
        for token, index in vocabulary.items():
            is_special = token in special
            marks[index] = BEGINS * is_special | _ENDS * (is_special or token.endswith(ending))
        return marks
    if mark is None:
        marks[[each for token, each in vocabulary.items() if token.startswith(CONTINUING)]] = 0
        return marks
    as_bytes = _byte_letters() if mark == BYTE_SPACE else None
    added = {each.content for each in tokenizer.get_added_tokens_decoder().values()}
    for token, index in vocabulary.items():
        if token in special:
            marks[index] = BEGINS | _ENDS
            continue
        text = token.removeprefix(mark)
        begins = text != token
        if token in added:  # raw text, such as ModernBERT's runs of spaces
            text = token
        elif as_bytes is not None or _BYTE.fullmatch(token):
            if as_bytes is not None:
                raw = bytes(as_bytes.get(each, 0) for each in text)
            else:
                raw = bytes.fromhex(token[3:5])
            begins |= raw[:1] in _CHINESE
            text = raw.decode(errors="ignore")  # without what is part of a character
        else:
            text = text.replace(mark, " ")
        is_space = token == mark or (bool(text) and text.isspace())
        begins |= is_space or (bool(text) and not _is_of_word(text[0]))  # else part of a character
        ends = bool(text) and not _is_of_word(text[-1])
        marks[index] = BEGINS * begins | _ENDS * ends | SPACE * is_space
    return marks


_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""How a vocabulary names a byte of a character that it lacks."""
_CHINESE = {bytes([first]) for first in range(0xE4, 0xEA)}
"""The first byte of Chinese characters in UTF-8, U+4000 to U+9FFF."""
IDEOGRAPHS = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
"""Chinese characters, as part of a set in a regular expression."""
_IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")


def _is_of_word(character: str) -> bool:
    return category(character)[0] in "LNM" and _IDEOGRAPH.match(character) is None


BYTE_SPACE = "\u0120"
"""What a space is written as in a vocabulary of bytes."""


def space_mark(tokenizer: Tokenizer) -> str | None:
    """What the vocabulary writes for the space before a word; None where it marks the rest of it.

    That of bytes (Radford et al. 2019), or that of SentencePiece; Gemma's normaliser writes it.
    """
    for step in steps_in(tokenizer, "pre_tokenizer"):
        if step["type"] == "ByteLevel":
            return BYTE_SPACE
        if step["type"] == "Metaspace" and step["replacement"] != " ":  # else bytes follow
            return step["replacement"]
    return _written_for_spaces(tokenizer)


def _written_for_spaces(tokenizer: Tokenizer) -> str | None:
    """What the normaliser puts in place of each space; None where they stay, or are removed."""
    for step in steps_in(tokenizer, "normalizer"):
        if step["type"] == "Replace" and step["pattern"] == {"String": " "}:
            return step["content"].strip() or None
    return None


def word_ending(tokenizer: Tokenizer) -> str:
    """What the vocabulary writes at the end of a word; "" where it marks something else.

    `</w>` is that of the published code of Sennrich et al. 2016.
    """
    if space_mark(tokenizer) is not None:
        return ""
    return getattr(tokenizer.model, "end_of_word_suffix", None) or ""


def begins_behind_space(tokenizer: Tokenizer) -> bool:
    """Whether the first word of a text has the tokens that it has behind a space."""
    for step in steps_in(tokenizer, "pre_tokenizer"):
        if step["type"] == "ByteLevel":
            return step["add_prefix_space"]
        if step["type"] == "Metaspace":
            return step.get("prepend_scheme", "always") != "never"
    return _written_for_spaces(tokenizer) is None


def behind_spaces(tokenizer: Tokenizer, words: Iterable[str]) -> list[str]:
    """Words as they are to be encoded each alone: as if they stood behind a space.

    So they come with one where the tokenizer adds none at the beginning of a text.
    """
    if begins_behind_space(tokenizer):
        return list(words)
    return [word and f" {word}" for word in words]


def _byte_letters() -> dict[str, int]:
    """The byte of each letter in a vocabulary of bytes (the published code of GPT-2)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in shown}
    hidden = [byte for byte in range(256) if byte not in shown]
    return letters | {chr(0x100 + number): byte for number, byte in enumerate(hidden)}

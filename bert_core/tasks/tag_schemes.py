"""Tags of words to entities and back: IOB1, IOB2 and BIOES, for many sentences at once.

IOB1 writes B- only where an entity follows another of its type, IOB2 at the start of each; BIOES
also marks the last word (E-) and entities of one word (S-). Shapes: W words, E entities.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from bert_core.text.rng import IntArray

Scheme = Literal["iob1", "iob2", "bioes"]

OUTSIDE = "O"
"""The tag of a word that is part of no entity."""

_LETTERS = "OBIES"
_B, _I, _E, _S = range(1, 5)

BoolArray = npt.NDArray[np.bool_]


def is_plain(tag: str) -> bool:
    """Whether a tag belongs to no scheme: it is neither O nor a prefix before a type."""
    prefix, _, kind = tag.partition("-")
    return tag != OUTSIDE and not (kind and len(prefix) == 1 and prefix in _LETTERS[1:])


_OTHER_WRITING = re.compile(
    r"([BIESLUMW])[-_:\u2010-\u2015\u2212](.+)|(.+)[-_\u2010-\u2015\u2212]([BIESLUMW])",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"(?:\([^()*]{1,100})?\*\)?")
_OTHER_LETTERS = {"L": "E", "U": "S", "M": "I", "W": "S"}
_OTHER_OUTSIDE = ("o", "0")


def respelled(names: Collection[str]) -> dict[str, str]:
    """Tags of a scheme that are written otherwise, and how they are written here.

    `B_PER`, `b-PER` and `PER-B` are B-PER, `o` and `0` are O, and BILOU's L- and U- (or M- and W-)
    are E- and S- (I- and S-). None where `names`, all tags of the data, are not all of a scheme
    then, or may as well be plain: there has to be a B-, I- or S-, and a tag for words outside or a
    second prefix.
    """
    found = {name: _usual_writing(name) for name in names if is_plain(name)}
    written = [found.get(name, name) for name in names]
    prefixes = {split_tag(name)[0] for name in written if name is not None and name != OUTSIDE}
    if None in written or not prefixes & {"B", "I", "S"}:
        return {}
    if OUTSIDE not in written and len(prefixes) < 2:
        return {}
    return {name: usual for name, usual in found.items() if usual is not None}


def look_like_a_scheme(names: Iterable[str]) -> list[str]:
    """The plain tags that may be meant as those of a scheme.

    `o`, ones with two prefixes, and the brackets of OntoNotes: `(PERSON*`, `*`, `*)`.
    """
    names = list(names)
    brackets = [name for name in names if _BRACKETS.fullmatch(name)]
    if brackets:
        return brackets
    odd = {name: usual for name in filter(is_plain, names) if (usual := _usual_writing(name))}
    prefixes = {split_tag(usual)[0] for usual in odd.values() if usual != OUTSIDE}
    return [name for name in odd if name == "o" or (len(prefixes) > 1 and name != "0")]


def _usual_writing(name: str) -> str | None:
    if name in _OTHER_OUTSIDE:
        return OUTSIDE
    match = _OTHER_WRITING.fullmatch(name)
    if match is None:
        return None
    letter, kind = (match[1], match[2]) if match[1] else (match[4], match[3])
    return f"{_OTHER_LETTERS.get(letter.upper(), letter.upper())}-{kind}"


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; a type may have hyphens, that of O is empty.

    A word with a plain tag, NN, is an entity of that type, alone: B-NN; see `Tags.from_codes`.
    """
    if is_plain(tag):
        return _LETTERS[_B], tag
    prefix, _, kind = tag.partition("-")
    return prefix, kind


@dataclass(frozen=True)
class Tags:
    """The tags of some sentences, end to end.

    - `prefixes` [W], indices into OBIES; `types` [W], indices into `type_names`, -1 for O
    - `first` [W], whether a word begins a sentence

    They are read leniently, as conlleval reads them: an entity begins with B- or S-, after E- or
    S-, and wherever the type changes, whatever the scheme; `invalid` finds what strays from it.
    """

    prefixes: IntArray
    types: IntArray
    type_names: tuple[str, ...]
    first: BoolArray

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> Self:
        """The tags of sentences."""
        known: dict[str, int] = {}
        codes = [known.setdefault(tag, len(known)) for tag in chain.from_iterable(sentences)]
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        return cls.from_codes(np.array(codes, dtype=np.int64), tuple(known), lengths)

    @classmethod
    def from_codes(
        cls,
        codes: IntArray,
        names: Sequence[str],
        lengths: IntArray,
        *,
        joined: BoolArray | bool = False,
    ) -> Self:
        """The tags with these numbers, [W], among `names`; `lengths` are those of the sentences.

        Where `joined`, of each word [W] or of all, a plain tag continues an entity of its type.
        """
        parts = [split_tag(name) for name in names]
        type_names = tuple(sorted({kind for _, kind in parts if kind}))
        number = {kind: index for index, kind in enumerate(type_names)} | {"": -1}
        first = np.zeros(len(codes), dtype=bool)
        first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        prefixes = np.array([_LETTERS.index(each) for each, _ in parts], dtype=np.int64)[codes]
        plain = np.array([is_plain(name) for name in names], dtype=bool)[codes]
        prefixes[plain & joined] = _I
        return cls(
            prefixes=prefixes,
            types=np.array([number[kind] for _, kind in parts], dtype=np.int64)[codes],
            type_names=type_names,
            first=first,
        )

    @cached_property
    def inside(self) -> BoolArray:
        """Which words are part of an entity, [W]."""
        return self.types >= 0

    @cached_property
    def starts(self) -> BoolArray:
        """Which words begin an entity, [W]."""
        fresh = self._has(_B, _S) | _moved(self._has(_E, _S), 1)
        return self.inside & (fresh | ~self._goes_on)

    @cached_property
    def ends(self) -> BoolArray:
        """Which words end an entity, [W]: those before a start, an O, or nothing."""
        return self.inside & ~_moved(self.inside & ~self.starts, -1)

    @cached_property
    def entities(self) -> tuple[IntArray, IntArray, IntArray]:
        """First word, the word after the last, and type of each entity, each [E]."""
        begins = np.flatnonzero(self.starts)
        return begins, np.flatnonzero(self.ends) + 1, self.types[begins]

    def invalid(self, scheme: Scheme) -> BoolArray:
        """Marks the words whose tag the scheme forbids in its place, [W]."""
        if scheme == "iob1":
            return self._has(_E, _S) | (self._has(_B) & ~self._goes_on)
        if scheme == "iob2":
            return self._has(_E, _S) | (self._has(_I) & ~self._goes_on)
        begun = self._goes_on & _moved(self._has(_B, _I), 1)
        followed = _moved(self._goes_on & self._has(_I, _E), -1)
        return (self._has(_I, _E) & ~begun) | (self._has(_B, _I) & ~followed)

    def strings(self, scheme: Scheme) -> list[str]:
        """The entities as tags of a scheme, valid there; [W]."""
        if scheme == "iob1":
            prefixes = np.where(self.starts & self._goes_on, _B, _I)
        elif scheme == "iob2":
            prefixes = np.where(self.starts, _B, _I)
        else:
            of_start, of_others = np.where(self.ends, _S, _B), np.where(self.ends, _E, _I)
            prefixes = np.where(self.starts, of_start, of_others)
        names = [f"{letter}-{kind}" for kind in self.type_names for letter in _LETTERS] + [OUTSIDE]
        codes = np.where(self.inside, self.types * len(_LETTERS) + prefixes, len(names) - 1)
        return np.array(names, dtype=object)[codes].tolist()

    @cached_property
    def _goes_on(self) -> BoolArray:
        """Which words of an entity follow a word of the same type, [W]."""
        return self.inside & (self.types == np.roll(self.types, 1)) & ~self.first

    def _has(self, *prefixes: int) -> BoolArray:
        return np.isin(self.prefixes, prefixes)


def detect_scheme(tags: Tags) -> Scheme:
    """BIOES where there is an E- or S-, else that of IOB1 and IOB2 with fewer invalid tags.

    Both read the same entities, so where nothing tells them apart it is called IOB2.
    """
    if np.isin(tags.prefixes, (_E, _S)).any():
        return "bioes"
    return "iob1" if tags.invalid("iob1").sum() < tags.invalid("iob2").sum() else "iob2"


def _moved(mask: BoolArray, by: Literal[1, -1]) -> BoolArray:
    """The mask shifted by one word (1: the word before, -1: the word after), padded with False."""
    moved = np.zeros_like(mask)
    if by == 1:
        moved[1:] = mask[:-1]
    else:
        moved[:-1] = mask[1:]
    return moved

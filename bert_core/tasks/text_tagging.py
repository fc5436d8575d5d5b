"""Tagging of raw text: entities with their characters, from one of several ways to join sub-words.

Raw text is split into words as the annotated corpora of named entities split it, so that a tagger
sees only words of the kind it was trained on.
Shapes: N texts, W words, P places (sub-words), L labels.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any
from unicodedata import category

import numpy as np
from tokenizers import Tokenizer

from bert_core.interface import Aggregation
from bert_core.tasks.encoded_rows import EncodedRows, concatenated
from bert_core.tasks.sequences import Overflow, TooManyTokensError, align
from bert_core.tasks.tag_schemes import OUTSIDE, Tags
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, softmax
from bert_core.tasks.word_rows import encode_words
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.word_marks import IDEOGRAPHS, begins_behind_space, behind_spaces

_MARK = "\u0300"
"""Stands for any combining mark: it is part of the word whose letter it follows."""

_A = rf"[^\W_{IDEOGRAPHS}]"  # a letter or digit
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
    rf"|[{IDEOGRAPHS}]"  # written without spaces
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

    Words are divided by spaces and signs; a Chinese character is one of its own. Signs are words
    of their own, equal ones together, as are `'s`, `n't` and their like. Signs that join what
    stands on both sides are part of a word: `Franco-German`, `1.5`, `O'Neill`, `+31`, and all
    those of an address. The sign in a Hebrew acronym (`צה"ל`) is part of it, not the one between a
    prefix and a quotation (`ה"ארץ"`). The period of an abbreviation belongs to it where it shows
    that it is one: `J.`, `U.N.`, not `Inc.`.

    Invisible characters that BERT's tokenizer drops, such as byte order marks, zero-width
    spaces and variation selectors, do not divide words and are not at their edges. Marks that
    follow no letter are in no word.
    """
    return list(iter_word_spans(text))


def iter_word_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of `word_spans` one by one."""
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
    """Returns the span of a word without the edge characters that belong to no word."""
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
    """The sign itself, one mark for all marks, nothing for an invisible one (noted in `hidden`)."""
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
    if text[end + 1 : end + 2] == ".":
        return False
    if end - begin == 1:
        return text[begin].isalpha()
    return _ABBREVIATION.search(text[max(begin, end - 7) : end]) is not None


@dataclass(frozen=True)
class TextTagging:
    """Finds the entities of raw texts with a tagging model.

    A text that comes as a list of words is asked about as those words; its characters are those of
    the words with a space between them. With windows all texts together
    have at most `max_words`.
    """

    task: Tagging
    aggregation: Aggregation = "first"
    overflow: Overflow = "window"
    max_words: int | None = None

    def encode(self, examples: Sequence[str | Sequence[str]], tokenizer: Tokenizer) -> EncodedRows:
        """A row for each text, or several where one is too long.

        A place is a first sub-word or, unless those are what is asked for, any. Notes, of all
        texts end to end:

        - `words` [P], the word of each place; `word_counts` [N]
        - `spans` [W, 2], the characters of each word; `pieces` [P, 2] those of each sub-word, where
          these are what is asked for

        Raises `TooManyTokensError` at the first word that is one too many.
        """
        spelled = self.task.reads_spaces and not begins_behind_space(tokenizer)
        words: list[list[str]] = []
        spans = [np.empty(0, dtype=np.int64)]
        left = self.max_words
        for example in examples:
            # A text that is cut at its left has to be read to its end.
            some, places = _words_of(example, None if self.overflow == "left" else left)
            if self.overflow == "window" and left is not None:
                left -= len(some)
                if left < 0:
                    raise TooManyTokensError(
                        "too many words",
                        f"at most {self.max_words:,}",
                        "divide them among several requests",
                    )
            words.append(_spelled(example, some, places[::2]) if spelled else some)
            spans.append(places)
        rows = encode_words(
            tokenizer,
            words,
            np.arange(len(words)),
            self.task.max_length,
            overflow=self.overflow,
            every_token=self.aggregation != "first",
            spelled=spelled,
        )
        notes = {
            "words": rows.words,
            "word_counts": concatenated([[len(word) for word in words]]),
            "spans": np.concatenate(spans).reshape(-1, 2),
        }
        if self.aggregation in ("none", "simple"):
            flat = list(chain.from_iterable(words))
            notes["pieces"] = _pieces(tokenizer, flat, rows.words, notes["spans"], spelled=spelled)
        no_labels = np.zeros_like(rows.lengths)
        return EncodedRows(
            input_ids=rows.input_ids,
            lengths=rows.lengths,
            first_lengths=rows.lengths,
            places=rows.places,
            place_counts=rows.place_counts,
            labels=np.empty(0, dtype=np.int64),
            labels_per_item=no_labels,
            rows_per_item=np.ones_like(rows.lengths),
            example=rows.sentence,
            num_tokens=rows.num_tokens,
            truncated=rows.truncated,
            notes=notes,
            counts={"words without tokens": rows.num_without_tokens},
        )

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[str | Sequence[str]]
    ) -> list[dict[str, Any]]:
        """`entities` of each text, from left to right.

        Each has a `type`, the characters from `start` up to before `end`, their `text`, and a
        `score`: the mean of what its words' (or sub-words') labels have. Of words it also has the
        first, `start_word`, and the one after the last, `end_word`. A label that does not continue
        the one before it, I-PER after O, begins an entity. Without aggregation the type is the
        label, prefix and all. Labels without a prefix are joined as the task has it.
        """
        probabilities = softmax(outputs)
        texts = [example if isinstance(example, str) else " ".join(example) for example in examples]
        if "pieces" in rows.notes:
            return self._of_pieces(probabilities, rows, texts)
        counts, spans = rows.notes["word_counts"], rows.notes["spans"]
        # Words that have no place, as nothing is left of them or they were cut off, are outside.
        codes, scores = np.full(len(spans), len(self.task.labels)), np.ones(len(spans))
        words, codes_of, scores_of = self._of_words(probabilities, rows.notes["words"])
        codes[words], scores[words] = codes_of, scores_of
        names = (*self.task.labels, OUTSIDE)
        tags = Tags.from_codes(codes, names, counts, joined=self.task.joins_words)
        found = self._entities(tags, scores, spans, counts, texts)
        for entities, first in zip(found, (np.cumsum(counts) - counts).tolist(), strict=True):
            for each, (begin, end) in entities:
                each |= {"start_word": begin - first, "end_word": end - first}
        return [{"entities": [each for each, _ in entities]} for entities in found]

    def _of_words(
        self, probabilities: np.ndarray, words: IntArray
    ) -> tuple[IntArray, IntArray, np.ndarray]:
        order = np.argsort(words, kind="stable")
        found, first, counts = np.unique(words[order], return_index=True, return_counts=True)
        sorted_ones = probabilities[order]
        if not len(found):
            return found, found, np.empty(0)
        if self.aggregation == "average":
            of_words = np.add.reduceat(sorted_ones, first) / counts[:, None]
            codes = of_words.argmax(axis=1)
            return found, codes, of_words[np.arange(len(found)), codes]
        if self.aggregation == "max":
            surest = np.lexsort((-sorted_ones.max(axis=1), words[order]))[first]
            return found, sorted_ones[surest].argmax(axis=1), sorted_ones[surest].max(axis=1)
        return found, sorted_ones[first].argmax(axis=1), sorted_ones[first].max(axis=1)

    def _of_pieces(
        self, probabilities: np.ndarray, rows: EncodedRows, examples: Sequence[str]
    ) -> list[dict[str, Any]]:
        words, pieces = rows.notes["words"], rows.notes["pieces"]
        order = np.argsort(words, kind="stable")
        order = order[pieces[order, 0] < pieces[order, 1]]  # no character: a space alone
        codes, scores = probabilities.argmax(axis=1)[order], probabilities.max(axis=1)[order]
        spans = pieces[order]
        text = np.repeat(np.arange(len(examples)), rows.notes["word_counts"])[words[order]]
        counts = np.bincount(text, minlength=len(examples))
        if self.aggregation == "simple":
            # With tags of single words, too, the sub-words of one are together.
            joined = self.task.joins_words | (np.diff(words[order], prepend=-1) == 0)
            tags = Tags.from_codes(codes, self.task.labels, counts, joined=joined)
            found = self._entities(tags, scores, spans, counts, examples)
            return [{"entities": [each for each, _ in entities]} for entities in found]
        ends = np.cumsum(counts)
        table = list(zip(codes.tolist(), scores.tolist(), spans.tolist(), strict=True))
        return [
            {
                "entities": [
                    {
                        "type": self.task.labels[code],
                        "text": example[begin:end],
                        "start": begin,
                        "end": end,
                        "score": score,
                    }
                    for code, score, (begin, end) in table[last - count : last]
                    if self.task.labels[code] != OUTSIDE
                ]
            }
            for example, last, count in zip(examples, ends.tolist(), counts.tolist(), strict=True)
        ]

    def _entities(
        self,
        tags: Tags,
        scores: np.ndarray,
        spans: IntArray,
        counts: IntArray,
        examples: Sequence[str],
    ) -> list[list[tuple[dict[str, Any], tuple[int, int]]]]:
        """The entities of each text, each with its first unit and the one after its last."""
        begins, ends, types = tags.entities
        sums = np.concatenate([[0], np.cumsum(scores)])
        means = (sums[ends] - sums[begins]) / (ends - begins)
        text = np.repeat(np.arange(len(examples)), counts)[begins]
        found: list[list[tuple[dict[str, Any], tuple[int, int]]]] = [[] for _ in examples]
        columns = text, begins, ends, types, means, spans[begins, 0], spans[ends - 1, 1]
        for number, begin, end, kind, mean, start, stop in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            entity = {
                "type": tags.type_names[kind],
                "text": examples[number][start:stop],
                "start": start,
                "end": stop,
                "score": mean,
            }
            found[number].append((entity, (begin, end)))
        return found


def _words_of(text: str | Sequence[str], most: int | None) -> tuple[list[str], IntArray]:
    """The words of a text, and the characters of each, end to end; one more than `most` at most.

    Given words lose the invisible characters at their edges.
    """
    limit = None if most is None else most + 1
    words: list[str] = []
    # A long text of signs has a million words: their tuples would take 130 MiB.
    characters = array("q")
    if isinstance(text, str):
        for begin, end in islice(iter_word_spans(text), limit):
            words.append(text[begin:end])
            characters.extend((begin, end))
        return words, np.array(characters)
    first = 0
    for word in islice(text, limit):
        begin, end = visible_span(word)
        words.append(word[begin:end])
        characters.extend((first + begin, first + end))
        first += len(word) + 1
    return words, np.array(characters)


def _spelled(text: str | Sequence[str], words: Sequence[str], begins: IntArray) -> list[str]:
    """Words of a text, each behind a space where white space stands; given ones have one between.

    However much and of whatever kind: annotated sentences have single spaces.
    """
    if not isinstance(text, str):
        return [f" {word}" if number else word for number, word in enumerate(words)]
    return [
        f" {word}" if begin and text[begin - 1].isspace() else word
        for word, begin in zip(words, begins.tolist(), strict=True)
    ]


def _pieces(
    tokenizer: Tokenizer, words: Sequence[str], word: IntArray, spans: IntArray, *, spelled: bool
) -> IntArray:
    """The characters of each place, [P, 2], given its word; a word's places follow one another."""
    number: dict[str, int] = {}
    types = concatenated([[number.setdefault(each, len(number)) for each in words]])
    texts = list(number) if spelled else behind_spaces(tokenizer, number)
    aligned = align(tokenizer, texts)
    own = [each.removeprefix(" ") for each in number] if spelled else number
    added = concatenated([[len(text) - len(each) for text, each in zip(texts, own, strict=True)]])
    is_first = np.diff(word, prepend=-1) != 0
    begins = np.flatnonzero(is_first)
    counts = np.diff(np.append(begins, len(word)))  # a word that is too long has lost some
    tokens = ragged_arange(aligned.first_tokens[types[word[begins]]], counts)
    return spans[word, :1] + aligned.offsets[tokens] - added[types[word], None]

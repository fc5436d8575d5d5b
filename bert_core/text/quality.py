"""Rules of quality by which whole documents are dropped, each by its name.

The limits are those of Gopher (Rae et al. 2021, appendix A), C4 (Raffel et al. 2020, section 2.2)
and FineWeb (Penedo et al. 2024). C4 drops lines with the word JavaScript, this drops documents.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bert_core.errors import UserError, nearest

_STOP_WORDS = frozenset(["the", "be", "to", "of", "and", "that", "have", "with"])
_BULLETS = ("•", "‣", "●", "○", "◦", "▪", "■", "-", "–", "*")
_ELLIPSES = ("...", "…")
_TERMINAL = frozenset(".!?\"'”’»。！？」।؟")
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？", "।", "؟")
_NGRAM_SHARES = ((2, 0.20), (3, 0.18), (4, 0.16))


@dataclass
class _Document:
    text: str

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each word is there: most rules need it once for each different word."""
        return Counter(self.words)

    @cached_property
    def word_characters(self) -> int:
        return sum(map(len, self.words))

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    def share_of_lines(self, is_such: Callable[[str], bool]) -> float:
        return sum(map(is_such, self.lines)) / len(self.lines)


def _mean_word_length(document: _Document) -> float:
    return document.word_characters / max(len(document.words), 1)


def _num_symbols(document: _Document) -> int:
    text = document.text
    return max(text.count("#"), sum(text.count(ellipsis) for ellipsis in _ELLIPSES))


def _share_alphabetic(document: _Document) -> float:
    alphabetic = sum(
        number
        for word, number in document.counts.items()
        if word.isalpha() or any(map(str.isalpha, word))
    )
    return alphabetic / max(len(document.words), 1)


def _num_stop_words(document: _Document) -> int:
    return len(_STOP_WORDS.intersection(map(str.lower, document.counts)))


def _repeats_lines(document: _Document, share_of_lines: float, share_of_text: float) -> bool:
    """Whether lines that stood before are more than these shares of the lines, of the text."""
    lines = Counter(document.lines)
    repeated = sum(number - 1 for number in lines.values())
    characters = sum(len(line) * (number - 1) for line, number in lines.items())
    return repeated > share_of_lines * len(document.lines) or characters > share_of_text * len(
        document.text
    )


def _repeats_ngrams(document: _Document) -> bool:
    """Whether the most frequent 2-, 3- or 4-gram has too large a share of the words' characters.

    An n-gram is not more frequent than its words, so most documents need no count of n-grams.
    """
    words = document.words
    of_a_word = max((len(word) * n for word, n in document.counts.items()), default=0)
    for length, share in _NGRAM_SHARES:
        most = share * document.word_characters
        if length * of_a_word > most:
            ngrams = Counter(zip(*(words[start:] for start in range(length)), strict=False))
            ngram, number = max(ngrams.items(), key=lambda item: item[1], default=((), 0))
            if number > 1 and number * sum(map(len, ngram)) > most:
                return True
    return False


def _num_sentences(document: _Document) -> int:
    return sum(document.text.count(end) for end in _SENTENCE_ENDS)


@dataclass(frozen=True)
class _Rule:
    drops: str
    fails: Callable[[_Document], bool]


_RULES = {
    "gopher_length": _Rule(
        "fewer than 50 or more than 100,000 words",
        lambda document: not 50 <= len(document.words) <= 100_000,
    ),
    "gopher_word_length": _Rule(
        "words of fewer than 3 or more than 10 characters on average",
        lambda document: not 3 <= _mean_word_length(document) <= 10,
    ),
    "gopher_symbols": _Rule(
        "more than one # or one ellipsis for 10 words",
        lambda document: _num_symbols(document) > 0.1 * len(document.words),
    ),
    "gopher_bullets": _Rule(
        "a bullet at the start of more than 90% of the lines",
        lambda document: document.share_of_lines(lambda line: line.startswith(_BULLETS)) > 0.9,
    ),
    "gopher_ellipses": _Rule(
        "an ellipsis at the end of more than 30% of the lines",
        lambda document: document.share_of_lines(lambda line: line.endswith(_ELLIPSES)) > 0.3,
    ),
    "gopher_alphabetic": _Rule(
        "a letter in less than 80% of the words",
        lambda document: _share_alphabetic(document) < 0.8,
    ),
    "gopher_stop_words": _Rule(
        "fewer than two of: the, be, to, of, and, that, have, with (English only)",
        lambda document: _num_stop_words(document) < 2,
    ),
    "gopher_repeated_lines": _Rule(
        "repeated lines: more than 30% of the lines or 20% of the characters",
        lambda document: _repeats_lines(document, 0.3, 0.2),
    ),
    "gopher_repeated_words": _Rule(
        "a most frequent 2-, 3- or 4-gram of more than 20%, 18% or 16% of the characters",
        _repeats_ngrams,
    ),
    "c4_sentences": _Rule(
        "fewer than 3 marks that end a sentence",
        lambda document: _num_sentences(document) < 3,
    ),
    "c4_lorem_ipsum": _Rule(
        "the words lorem ipsum",
        lambda document: "lorem ipsum" in document.text.lower(),
    ),
    "c4_curly_bracket": _Rule("a curly bracket", lambda document: "{" in document.text),
    "c4_javascript": _Rule(
        "the word JavaScript in more than 10% of the lines",
        lambda document: document.share_of_lines(lambda line: "javascript" in line.lower()) > 0.1,
    ),
    "fineweb_punctuation": _Rule(
        "a punctuation mark at the end of at most 12% of the lines",
        lambda document: document.share_of_lines(lambda line: line[-1:] in _TERMINAL) <= 0.12,
    ),
    "fineweb_repeated_lines": _Rule(
        "repeated lines: more than 10% of the characters",
        lambda document: _repeats_lines(document, 1.0, 0.1),
    ),
    "fineweb_short_lines": _Rule(
        "fewer than 30 characters in at least 67% of the lines",
        lambda document: document.share_of_lines(lambda line: len(line) < 30) >= 0.67,
    ),
}
QUALITY_RULES = {name: rule.drops for name, rule in _RULES.items()}
"""What the documents have that each rule drops."""
RULE_SETS = tuple(dict.fromkeys(name.partition("_")[0] for name in _RULES))


def chosen_rules(names: Iterable[str]) -> tuple[str, ...]:
    """The rules of these names or sets of rules, in the order in which they are applied.

    Raises `UserError` for a name that is neither.
    """
    chosen: set[str] = set()
    for name in names:
        of_set = [rule for rule in _RULES if rule.partition("_")[0] == name or rule == name]
        if not of_set:
            known = [*RULE_SETS, *_RULES]
            what = f"no such rule of quality{nearest(name, known)}"
            raise UserError(what, f"--quality {name}", f"give some of {', '.join(known)}")
        chosen.update(of_set)
    return tuple(rule for rule in _RULES if rule in chosen)


def first_failure(text: str, names: Sequence[str]) -> int:
    """The index of the first of these rules by which a document is dropped, or -1."""
    document = _Document(text)
    return next((index for index, name in enumerate(names) if _RULES[name].fails(document)), -1)

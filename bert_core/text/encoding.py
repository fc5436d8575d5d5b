"""Documents -> sentences -> token ids, several times faster than `tokenizers` alone.

BERT never looks across white space or ASCII punctuation, so each different word is encoded once.
docs/decisions.md says why sentences are split by sentencex.
"""

import json
import re
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from tokenizers import Tokenizer

from bert_core.special_tokens import SPECIAL_TOKENS, special_token_ids, special_tokens
from bert_core.word_marks import begins_word, behind_spaces, word_marks

_MOST_CHARACTERS = 1 << 14
_WIDE_SPACE = r"[^\S\x00-\x7f]"
_PERIOD_AFTER_WIDE_SPACE = re.compile(rf"\.(?<={_WIDE_SPACE}\.)")
_WIDE_SPACES = re.compile(_WIDE_SPACE)


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits every line of the text into sentences, stripped and never empty.

    `language` is a code such as `en`; sentencex falls back to a related language, or English.
    """
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] - native module

    sentences: list[str] = []
    for line in text.split("\n"):
        is_usual = len(line) <= _MOST_CHARACTERS and not _PERIOD_AFTER_WIDE_SPACE.search(line)
        sentences += segment(language, line) if is_usual else _sentences(line, language)
    return [stripped for sentence in sentences if (stripped := sentence.strip())]


def _sentences(line: str, language: str) -> Iterator[str]:
    """The sentences of a line, in time that grows with its length alone.

    sentencex looks for the end of each quotation in all it is given: a megabyte of quotation marks
    that nobody closes would take minutes. So it is given stretches of a long line; each begins
    with the last two sentences of the one before.
    """
    begin = 0
    while len(line) - begin > _MOST_CHARACTERS:
        ends = _ends(line, begin, begin + _MOST_CHARACTERS, language)
        sure = ends[:-2]  # what comes next may move the last end but one as well
        if not sure:
            sure = [*ends[:-1], max([_before_the_last_word(line, begin, ends[-1]), *ends[:-1]])]
        for end in sure:
            yield line[begin:end]
            begin = end
    for end in _ends(line, begin, len(line), language):
        yield line[begin:end]
        begin = end


def _before_the_last_word(line: str, begin: int, end: int) -> int:
    """Where a stretch of a line ends, not inside a word unless it is one word."""
    is_in_a_word = not (line[end - 1].isspace() or line[end].isspace())
    words = line[begin:end].rsplit(maxsplit=1)
    return end - len(words[1]) if is_in_a_word and len(words) == 2 else end


def _ends(line: str, begin: int, end: int, language: str) -> list[int]:
    from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue] - native module

    stretch = line[begin:end]
    if _PERIOD_AFTER_WIDE_SPACE.search(stretch):
        # Version 1.0.32 panics where a space outside ASCII is between an initial and its period.
        stretch = _WIDE_SPACES.sub(" ", stretch)
    return list(accumulate(map(len, segment(language, stretch)), initial=begin))[1:]


_BATCH_CHARACTERS = 1 << 21
_LONGEST_WORD = 100
"""Characters of a word that WordPiece cuts into pieces; a longer one is unknown as a whole."""
_DELETED_BY_CLEANING = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""What regular expressions take for white space and BERT's normaliser deletes: words grow."""
_WORDS = re.compile(r"[^\s!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]|\n")
"""Words, ASCII punctuation, and the end of a sentence."""


MOST_TOKENS = 256
"""Of a sentence, or it is cut: of longer ones a row of 128 tokens would hold less than half."""
_PIECE_TOKENS = 30
"""Of a piece of such a sentence, about: as of a usual one, and four fill a row of 128."""


class SentenceEncoder:
    """Gives the ids that `tokenizer.encode` gives behind a space, without special tokens.

    `unknown_characters` counts those of words that are unknown because they are too long, such as
    clauses of Thai, which has no spaces between words; they are few tokens, however much text.

    A text's own "[MASK]" and the like are plain text here: the ids of special tokens come from
    the rows alone. `max_cached_words` bounds the memory, at about 250 bytes a word.
    """

    def __init__(
        self, tokenizer: Tokenizer, dtype: DTypeLike, *, max_cached_words: int = 400_000
    ) -> None:
        self._tokenizer = _of_plain_text(tokenizer)
        self._dtype = np.dtype(dtype)
        self._by_word = _words_stand_alone(tokenizer)
        self._whole_tokenizer = tokenizer
        special = special_token_ids(tokenizer)
        self.unknown_id = special.unk
        self._end = special.pad  # no text is encoded to [PAD]
        self._max_cached_words = max_cached_words
        self._cache: dict[str, bytes] = {}
        self._unknown: set[str] = set()
        self.unknown_characters = 0

    def encode(self, sentences: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encodes sentences, none of which holds a line break.

        Returns tokens [num_tokens] and lengths [sentences]; a length may be 0.
        """
        encode = self._encode_by_word if self._by_word else self._encode_whole
        encoded = [encode(batch) for batch in _batches(sentences)]
        return (
            np.concatenate([np.zeros(0, self._dtype), *(tokens for tokens, _ in encoded)]),
            np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in encoded)]),
        )

    def cut(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cuts sentences of more than `MOST_TOKENS` at word starts: no row would hold them.

        Takes what `encode` returns. Returns the lengths of all pieces in order, and how many
        pieces each sentence has [sentences]; tokens stay as they are.
        """
        num_pieces = np.ones(len(lengths), dtype=np.int64)
        ends, parts, done = np.cumsum(lengths), [], 0
        for index in np.flatnonzero(lengths > MOST_TOKENS).tolist():
            own = tokens[ends[index] - lengths[index] : ends[index]]
            pieces = _piece_lengths(begins_word(own, word_marks(self._whole_tokenizer)))
            parts += [lengths[done:index], pieces]
            num_pieces[index], done = len(pieces), index + 1
        return np.concatenate([*parts, lengths[done:]]), num_pieces

    def _encode_whole(self, sentences: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        sentences = behind_spaces(self._tokenizer, sentences)  # they follow one another in rows
        encodings = self._tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        tokens = np.fromiter(chain.from_iterable(ids), dtype=self._dtype)
        return tokens, np.array([len(sentence) for sentence in ids], dtype=np.int64)

    def _encode_by_word(self, sentences: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        text = _DELETED_BY_CLEANING.sub("", "\n".join([*sentences, ""]))
        words = _WORDS.findall(text)
        self._learn(set(words))
        if self._unknown:
            self.unknown_characters += sum(len(word) for word in words if word in self._unknown)
        stream = b"".join(map(self._cache.__getitem__, words))
        marked = np.frombuffer(stream, dtype=self._dtype)
        is_end = marked == self._end
        ends = np.flatnonzero(is_end)
        lengths = np.diff(ends, prepend=-1) - 1
        return marked[~is_end], lengths.astype(np.int64)

    def _learn(self, words: set[str]) -> None:
        if len(self._cache) + len(words) > self._max_cached_words:
            self._cache, self._unknown = {}, set()
        unseen = list(words.difference(self._cache))
        if not unseen:
            return
        encoding = self._tokenizer.encode_batch(
            [unseen], is_pretokenized=True, add_special_tokens=False
        )[0]
        ids = np.array(encoding.ids, dtype=self._dtype).tobytes()
        of_word = np.array(encoding.word_ids, dtype=np.int64)
        bounds = np.searchsorted(of_word, np.arange(len(unseen) + 1))
        ends = (bounds * self._dtype.itemsize).tolist()
        for index, word in enumerate(unseen):
            self._cache[word] = ids[ends[index] : ends[index + 1]]
            if len(word) > _LONGEST_WORD:
                tokens = encoding.ids[bounds[index] : bounds[index + 1]]
                # A few tokens, one of them [UNK], stand for all these characters.
                if self.unknown_id in tokens and len(tokens) * 10 < len(word):
                    self._unknown.add(word)
        self._cache["\n"] = np.array([self._end], dtype=self._dtype).tobytes()


def _piece_lengths(begins: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The lengths of about equal pieces of a sentence; `begins` says which tokens begin a word."""
    count = -(-len(begins) // _PIECE_TOKENS)
    even = np.arange(1, count) * len(begins) // count
    starts = np.flatnonzero(begins)
    cuts = starts[np.searchsorted(starts, even, side="right") - 1]
    cuts = np.where(even - cuts < _PIECE_TOKENS // 2, cuts, even)  # one word without an end
    return np.diff(cuts, prepend=0, append=len(begins))


def _of_plain_text(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that knows no special token, in no text without a line break.

    Special tokens that are pieces of the model as well would be found as such: in Unigram they are
    the likeliest ones. So the copy calls them what no text is; ids stay the same.
    """
    state = json.loads(tokenizer.to_str())
    model, names = state["model"], {name: f"\n{name}" for name in special_tokens(tokenizer).all}
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): each for piece, each in vocabulary.items()}
        model["unk_token"] = names.get(model.get("unk_token"), model.get("unk_token"))
        pieces = vocabulary.keys()
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
        pieces = {piece for piece, _ in vocabulary}
    renamed = names.keys() & pieces
    state["added_tokens"] = [
        token | {"special": token["special"] or token["content"] in names}
        for token in state["added_tokens"]
        if token["content"] not in renamed
    ]
    copy = Tokenizer.from_str(json.dumps(state))
    copy.encode_special_tokens = True
    return copy


def _batches(sentences: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for sentence in sentences:
        batch.append(sentence)
        num_characters += len(sentence)
        if num_characters > _BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _words_stand_alone(tokenizer: Tokenizer) -> bool:
    """Whether a word between white space or ASCII punctuation has the same ids anywhere."""
    state = json.loads(tokenizer.to_str())
    normalizer = state["normalizer"] or {}
    return (
        state["model"]["type"] == "WordPiece"
        and normalizer.get("type") == "BertNormalizer"
        and normalizer.get("clean_text") is True
        and (state["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and {token["content"] for token in state["added_tokens"]} <= set(SPECIAL_TOKENS)
    )

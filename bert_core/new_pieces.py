"""More word pieces for a tokenizer that exists: learned from text, as WordPiece learns its own.

In: a WordPiece tokenizer and texts. Out: the same tokenizer with new pieces after its last id. Text
without any of them keeps its ids, and each new piece stands for two or more of the old ones.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from bert_core.special_tokens import TokenizerError, num_embeddings
from bert_core.word_marks import CONTINUING

LONGEST_PIECE = 40
"""Characters; longer pieces are of one address or one formula."""

_LEAST_WORDS = 5
"""So many words of the texts have a piece, at least."""


def refuse_other_kinds(tokenizer: Tokenizer) -> None:
    """Raises `TokenizerError` for a tokenizer that cannot be extended, which is not WordPiece."""
    if not isinstance(tokenizer.model, WordPiece):
        raise TokenizerError(
            "only WordPiece vocabularies can be extended",
            f"one of {type(tokenizer.model).__name__}",
            "leave out the new pieces: --new_pieces, or --vocabulary extend",
        )


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], num_pieces: int) -> Tokenizer:
    """The tokenizer with at most `num_pieces` more word pieces, the most frequent first.

    Words are counted as the tokenizer divides them. The most frequent pair of neighbouring pieces
    is joined, in all words at once, and again, as the trainer of `tokenizers` does (Sennrich et al.
    2016, algorithm 1); ties go to the piece that is first in the alphabet. Pieces that no word is
    cut into in the end, since longer ones took their place, are left out, and others learned
    instead. A piece is in five words of the texts at least. The same texts give the same pieces.
    Raises `TokenizerError` for a tokenizer that is not WordPiece.
    """
    refuse_other_kinds(tokenizer)
    state = json.loads(tokenizer.to_str())
    words = count_words(tokenizer, texts)
    learner = _Learner(tokenizer, words)
    kept: list[str] = []
    while len(kept) < num_pieces:
        if not learner.learn(num_pieces - len(kept)):
            break
        used = Counter[str]()
        extended = _with_pieces(state, tokenizer, learner.pieces)
        for word, count in words.items():
            used.update(dict.fromkeys(_cut(extended, word), count))
        kept = [piece for piece in learner.pieces if used[piece] >= _LEAST_WORDS]
    return _with_pieces(state, tokenizer, kept[:num_pieces])


def count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word stands in the texts, as the tokenizer normalizes and divides them."""
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    counts = Counter[str]()
    for text in texts:
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        if pre_tokenizer is None:
            counts[normalized] += 1
        else:
            counts.update(word for word, _ in pre_tokenizer.pre_tokenize_str(normalized))
    return counts


def old_pieces(tokenizer: Tokenizer, piece: str) -> list[int]:
    """The ids that an older tokenizer has for what a piece stands for.

    A `##` piece is cut as the rest of a word. Unknown characters are `[UNK]`.
    """
    if not piece.startswith(CONTINUING):
        return [token.id for token in tokenizer.model.tokenize(piece)]
    return _ids_of_rest(tokenizer, piece.removeprefix(CONTINUING))


def _ids_of_rest(tokenizer: Tokenizer, rest: str) -> list[int]:
    """Longest match first, as WordPiece cuts, where a word has begun before."""
    ids: list[int] = []
    begin = 0
    while begin < len(rest):
        for end in range(len(rest), begin, -1):
            found = tokenizer.model.token_to_id(CONTINUING + rest[begin:end])
            if found is not None:
                ids.append(found)
                begin = end
                break
        else:
            unknown = tokenizer.model.token_to_id("[UNK]")
            return [] if unknown is None else [unknown]
    return ids


def _cut(tokenizer: Tokenizer, word: str) -> list[str]:
    return [token.value for token in tokenizer.model.tokenize(word)]


def _with_pieces(state: dict, tokenizer: Tokenizer, pieces: list[str]) -> Tokenizer:
    """The tokenizer with these pieces behind its last id."""
    first = num_embeddings(tokenizer)
    vocabulary = state["model"]["vocab"] | {
        piece: first + number for number, piece in enumerate(pieces)
    }
    extended = state | {"model": state["model"] | {"vocab": vocabulary}}
    return Tokenizer.from_str(json.dumps(extended))


class _Learner:
    """Joins the most frequent pair of pieces, again and again."""

    def __init__(self, tokenizer: Tokenizer, words: Counter[str]) -> None:
        self.pieces: list[str] = []
        self._known = set(tokenizer.get_vocab(with_added_tokens=True))
        unknown = "[UNK]"
        # Sorted, so that nothing depends on the order of the texts.
        cut = ((_cut(tokenizer, word), words[word]) for word in sorted(words))
        self._words = [(list(pieces), count) for pieces, count in cut if unknown not in pieces]
        self._counts = Counter[tuple[str, str]]()
        self._places = defaultdict[tuple[str, str], set[int]](set)
        for index in range(len(self._words)):
            self._count(index, 1)
        self._heap = [(-count, *pair) for pair, count in self._counts.items()]
        heapq.heapify(self._heap)

    def learn(self, num_pieces: int) -> int:
        """Learns so many more pieces, or as many as there are; returns how many."""
        learned = 0
        while learned < num_pieces and (pair := self._most_frequent()) is not None:
            joined = pair[0] + pair[1].removeprefix(CONTINUING)
            self._join(pair, joined)
            if joined not in self._known:
                self._known.add(joined)
                self.pieces.append(joined)
                learned += 1
        return learned

    def _most_frequent(self) -> tuple[str, str] | None:
        while self._heap:
            count, first, second = heapq.heappop(self._heap)
            pair = first, second
            now = self._counts[pair]
            if -count != now:  # an older count; the newer one is in the heap, too
                continue
            if now < _LEAST_WORDS:
                return None
            if len(first) + len(second) - len(CONTINUING) <= LONGEST_PIECE:
                return pair
        return None

    def _join(self, pair: tuple[str, str], joined: str) -> None:
        changed: set[tuple[str, str]] = set()
        for index in sorted(self._places[pair]):
            changed.update(self._count(index, -1))
            pieces, count = self._words[index]
            self._words[index] = list(_joined(pieces, pair, joined)), count
            changed.update(self._count(index, 1))
        for other in changed:
            if self._counts[other]:
                heapq.heappush(self._heap, (-self._counts[other], *other))
            else:
                del self._counts[other], self._places[other]

    def _count(self, index: int, sign: int) -> list[tuple[str, str]]:
        """Adds the pairs of a word to the counts, or takes them away; returns them."""
        pieces, count = self._words[index]
        pairs = list(pairwise(pieces))
        for pair in pairs:
            self._counts[pair] += sign * count
            if sign > 0:
                self._places[pair].add(index)
            else:
                self._places[pair].discard(index)
        return pairs


def _joined(pieces: list[str], pair: tuple[str, str], joined: str) -> Iterator[str]:
    index = 0
    while index < len(pieces):
        if tuple(pieces[index : index + 2]) == pair:
            yield joined
            index += 2
        else:
            yield pieces[index]
            index += 1

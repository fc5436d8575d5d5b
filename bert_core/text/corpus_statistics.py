"""Statistics of prepared text: frequent and unknown words, lengths, examples of what is kept.

`describe_piece` writes its record last and may be run again at any time, as the other steps.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bert_core.text.encoding import SentenceEncoder
from bert_core.text.pieces import Piece, read_hashes, read_piece
from bert_core.text.screening import MOST_EXAMPLES, Example, beginning, first_examples
from bert_core.text.shards import map_shard, write_bytes

_MOST_OF_A_PIECE, _MOST_SHOWN = 2000, 25
_MOST_SENTENCE_TOKENS, _SENTENCE_STEP = 128, 16


class PieceStatistics(BaseModel):
    """The most frequent words of a piece, those that become [UNK], and kept documents."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: dict[str, int]
    unknown_words: dict[str, int]
    examples: list[Example]


def describe_piece(
    folder: Path, piece: Piece, choice: NDArray[np.int8], encoder: SentenceEncoder
) -> PieceStatistics:
    """Counts the words of the documents that are kept, before `encode_piece` removes the text.

    `choice` [num_documents] is below 0 for documents that are dropped.
    """
    path = folder / "statistics" / f"{piece.name}.json"
    if path.is_file():
        return PieceStatistics.model_validate_json(path.read_bytes())
    documents = read_piece(folder, piece)
    kept = np.flatnonzero(choice >= 0)
    tokens: Counter[str] = Counter()
    for index in kept:
        tokens.update(documents[index].split())
    words: Counter[str] = Counter()
    for token, number in tokens.items():
        words[_word(token)] += number
    del words[""]
    record = PieceStatistics(
        words=_most_common(words, _MOST_OF_A_PIECE),
        unknown_words=_most_common(_unknown(words, encoder), _MOST_OF_A_PIECE),
        examples=[
            Example(rank=rank, text=beginning(documents[index]))
            for rank, index in first_examples(read_hashes(folder, piece)[0], kept)
        ],
    )
    write_bytes(path, record.model_dump_json().encode())
    return record


def _word(token: str) -> str:
    """A token in lower case, without punctuation around it."""
    first, last = 0, len(token)
    while first < last and unicodedata.category(token[first])[0] not in "LMN":
        first += 1
    while first < last and unicodedata.category(token[last - 1])[0] not in "LMN":
        last -= 1
    return token[first:last].lower()


def _unknown(words: Counter[str], encoder: SentenceEncoder) -> Counter[str]:
    names = sorted(words)
    tokens, lengths = encoder.encode(names)
    of_word = np.repeat(np.arange(len(names)), lengths)
    unknown = np.unique(of_word[tokens == encoder.unknown_id])
    return Counter({names[index]: words[names[index]] for index in unknown})


def _most_common(counts: Counter[str], most: int) -> dict[str, int]:
    """The most frequent, by number, then by name: the same for any order of counting."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most])


@dataclass(frozen=True)
class CorpusStatistics:
    """What the pieces and the shards of a corpus have, kept documents alone.

    `document_lengths` and `sentence_lengths` count by number of tokens, in ranges such as 16-31.
    """

    words: dict[str, int]
    unknown_words: dict[str, int]
    examples: list[Example]
    document_lengths: dict[str, int]
    sentence_lengths: dict[str, int]


def describe_corpus(
    records: Iterable[PieceStatistics], folder: Path, shards: Iterable[str]
) -> CorpusStatistics:
    """Puts the records together, and counts lengths in the shards of a folder."""
    words: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    examples: list[Example] = []
    for record in records:
        words.update(record.words)
        unknown.update(record.unknown_words)
        examples = sorted([*examples, *record.examples], key=lambda example: example.rank)
        del examples[MOST_EXAMPLES:]
    documents, sentences = np.zeros(64, np.int64), np.zeros(9, np.int64)
    for name in shards:
        shard = map_shard(folder, name)
        lengths = np.diff(shard.sentences[shard.documents])
        documents += np.bincount(np.log2(lengths).astype(int), minlength=64)
        bins = np.minimum(np.diff(shard.sentences) // _SENTENCE_STEP, 8)
        sentences += np.bincount(bins, minlength=9)
    present = np.flatnonzero(documents)
    ranges = range(present[0], present[-1] + 1) if len(present) else ()
    steps = range(0, _MOST_SENTENCE_TOKENS, _SENTENCE_STEP)
    names = [f"{max(step, 1)}–{step + _SENTENCE_STEP - 1}" for step in steps]
    return CorpusStatistics(
        words=_most_common(words, _MOST_SHOWN),
        unknown_words=_most_common(unknown, _MOST_SHOWN),
        examples=examples,
        document_lengths={
            f"{1 << power:,}–{(2 << power) - 1:,}": int(documents[power]) for power in ranges
        },
        sentence_lengths=dict(
            zip([*names, f"{_MOST_SENTENCE_TOKENS} or more"], sentences.tolist(), strict=True)
        ),
    )

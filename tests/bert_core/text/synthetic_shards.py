"""Token shards for tests: large ones of random tokens in memory, small ones on disk."""

from pathlib import Path

import numpy as np

from bert_core.text.masking import Vocabulary
from bert_core.text.shards import (
    Shard,
    ShardIndex,
    TokenShards,
    token_dtype,
    write_index,
    write_shard,
)
from bert_core.word_marks import BEGINS

PAD, UNK, CLS, SEP, MASK = range(5)
DOCUMENTS = [[[5, 6, 7], [8]], [[9, 10]], [[11], [12], [13, 14]]]


def vocabulary(size: int = 30_000) -> Vocabulary:
    special = np.zeros(size, dtype=bool)
    special[[PAD, CLS, SEP, MASK]] = True
    marks = np.full(size, BEGINS, dtype=np.uint8)
    marks[size // 2 :] = 0  # these continue a word
    return Vocabulary(size, MASK, CLS, SEP, PAD, special, marks)


def synthetic_shards(
    num_shards: int = 3,
    sentences_per_shard: int = 2000,
    *,
    seed: int = 0,
    longest_sentence: int = 48,
    sentences_per_document: int = 40,
    vocab_size: int = 30_000,
) -> TokenShards:
    random = np.random.default_rng(seed)
    shards = []
    for number in range(num_shards):
        lengths = random.integers(3, longest_sentence, sentences_per_shard)
        sentences = np.concatenate([[0], np.cumsum(lengths)])
        per_document = random.integers(1, 2 * sentences_per_document, sentences_per_shard)
        ends = np.cumsum(per_document)
        ends = ends[ends < sentences_per_shard]
        documents = np.concatenate([[0], ends, [sentences_per_shard]])
        tokens = random.integers(5, vocab_size, sentences[-1], dtype=np.uint16)
        shards.append(Shard(f"shard-{number:05d}", tokens, sentences, documents))
    name = f"{num_shards}-{sentences_per_shard}-{seed}-{longest_sentence}-{sentences_per_document}"
    return TokenShards(Path("synthetic"), "train", shards, vocab_size, "none", name)


def write_two_shards(
    folder: Path, documents: list[list[list[int]]] = DOCUMENTS, vocab_size: int = 100
) -> Path:
    """Writes a split `train`: the documents, then the first of them again; returns the folder."""
    dtype = token_dtype(vocab_size)
    entries = [
        write_shard(folder, "train-00000", documents, dtype),
        write_shard(folder, "train-00001", documents[:1], dtype),
    ]
    index = ShardIndex(
        dtype=dtype, vocab_size=vocab_size, tokenizer_sha256="0" * 64, splits={"train": entries}
    )
    write_index(folder, index)
    return folder

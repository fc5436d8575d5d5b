"""A small folder of token shards with its tokenizer, as `prepare` leaves one."""

from pathlib import Path

import numpy as np

from bert_core.text.shards import ShardIndex, write_index, write_shard
from bert_core.tokenizer import SPECIAL_TOKENS, save_tokenizer, wordpiece_tokenizer

VOCABULARY = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(95))]


def write_shards(folder: Path) -> Path:
    """Two shards of random words in short sentences; returns the folder."""
    random = np.random.default_rng(0)
    entries = [
        write_shard(
            folder,
            f"train-{number:05d}",
            [
                [random.integers(5, 100, random.integers(3, 12)).tolist() for _ in range(12)]
                for _ in range(60)
            ],
            "uint16",
        )
        for number in range(2)
    ]
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    save_tokenizer(wordpiece_tokenizer(ids, lowercase=True), folder / "tokenizer.json")
    index = ShardIndex(
        dtype="uint16", vocab_size=100, tokenizer_sha256="0" * 64, splits={"train": entries}
    )
    write_index(folder, index)
    return folder

"""Documents that overlap with the texts that models are evaluated on, by 13-grams of words.

So did GPT-3 (Brown et al. 2020, appendix C); here the whole document is dropped.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_core.errors import NoSuchSplitError
from bert_core.text.shards import write_array
from bert_core.text.sources import CorpusPart
from bert_core.text.word_ngrams import Words

NUM_WORDS = 13
_SPLITS = ("dev", "test", "dev_mismatched", "validation_mismatched", "test_mismatched")


def evaluation_texts(parts: Iterable[CorpusPart]) -> list[str]:
    """The texts of a task's examples in all splits that models are evaluated on.

    Raises `UserError` for data that cannot be read, or that has no such split.
    """
    return [text for part in parts for text in _texts_of(part)]


def _texts_of(part: CorpusPart) -> Iterator[str]:
    from bert_core.tasks.catalog import TASKS

    name, _, data = part.path.partition("=")
    missing = []
    splits = _SPLITS[:1] if Path(data).is_file() else _SPLITS
    for split in splits:
        try:
            examples = TASKS[name].examples(data, split)
        except NoSuchSplitError as error:
            missing.append(error)
            continue
        for example in examples:
            yield from TASKS[name].texts(example)
    if len(missing) == len(splits):
        raise missing[0]


def write_ngrams(path: Path, texts: Iterable[str]) -> int:
    """Writes the hashes of all 13-grams, sorted; returns how many texts are too short for one."""
    ngrams = Words.of(list(texts)).ngrams(NUM_WORDS, pad=False)
    write_array(path, np.unique(ngrams.hashes))
    return int((np.diff(ngrams.offsets) == 0).sum())


def overlaps(words: Words, excluded: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """[texts] bool: whether each has one of these sorted 13-grams."""
    ngrams = words.ngrams(NUM_WORDS, pad=False)
    if not len(excluded):
        return np.zeros(len(words.offsets) - 1, dtype=np.bool_)
    nearest = np.searchsorted(excluded, ngrams.hashes).clip(max=len(excluded) - 1)
    hits = np.concatenate([np.zeros(1, np.int64), np.cumsum(excluded[nearest] == ngrams.hashes)])
    return np.diff(hits[ngrams.offsets]) > 0

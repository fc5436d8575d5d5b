"""Planned rows + shards -> the tokens of the rows, end to end.

Legend: R rows, T tokens, C tokens that are copied from shards.
"""

from collections.abc import Iterator

import numpy as np

from bert_core.text.rows.counter_hash import IntArray, ragged_arange
from bert_core.text.rows.pairs import RowPlan
from bert_core.text.shards import Shard, TokenShards


def assemble(
    shards: TokenShards, plan: RowPlan, *, cls_id: int, sep_id: int
) -> tuple[IntArray, IntArray]:
    """[CLS] A [SEP] (B [SEP]) of every row, and the segment of each token; both int64 [T]."""
    lengths = plan.lengths
    first = np.cumsum(lengths) - lengths
    input_ids = np.full(int(lengths.sum()), sep_id, dtype=np.int64)
    input_ids[first] = cls_id
    paired = np.flatnonzero(plan.next_sentence >= 0)
    shard = np.concatenate([plan.shard, plan.b_shard[paired]])
    by_shard = np.argsort(shard, kind="stable")
    offset = np.concatenate([plan.a_offset, plan.b_offset[paired]])[by_shard]
    length = np.concatenate([plan.a_length, plan.b_length[paired]])[by_shard]
    place = np.concatenate([first + 1, (first + plan.a_length + 2)[paired]])[by_shard]
    source, target = ragged_arange(offset, length), ragged_arange(place, length)  # [C]
    for index, begin, end in _runs(shard[by_shard]):
        data = shards.shards[index]
        copied = slice(int(length[:begin].sum()), int(length[:end].sum()))
        if len(paired) < len(first):
            target[copied] += _separators_before(
                data, source[copied], offset[begin:end], length[begin:end]
            )
        input_ids[target[copied]] = np.asarray(data.tokens)[source[copied]]
    return input_ids, _segments(plan)


def _runs(values: IntArray) -> Iterator[tuple[int, int, int]]:
    """Each value of an ascending array with where it begins and ends."""
    begins = np.flatnonzero(np.diff(values, prepend=-1))
    ends = np.append(begins, len(values))[1:]
    return zip(values[begins].tolist(), begins.tolist(), ends.tolist(), strict=True)


def _separators_before(
    shard: Shard, source: IntArray, offset: IntArray, length: IntArray
) -> IntArray:
    """How many documents of its row ended before each token: one [SEP] stands for each; [C]."""
    begins = shard.sentences[shard.documents[:-1]]
    document = np.searchsorted(begins, source, side="right")
    return document - np.repeat(np.searchsorted(begins, offset, side="right"), length)


def _segments(plan: RowPlan) -> IntArray:
    """0 up to the [SEP] after segment A, 1 from there on; int64 [T]."""
    of_b = np.where(plan.next_sentence >= 0, plan.b_length + 1, 0)
    sizes = np.stack([plan.lengths - of_b, of_b], axis=1).ravel()
    return np.repeat(np.tile(np.array([0, 1]), len(of_b)), sizes)

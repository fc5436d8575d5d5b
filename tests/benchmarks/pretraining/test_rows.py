import numpy as np
import pytest
import torch

from benchmarks.pretraining.rows import (
    make_rows,
    natural_lengths,
    packed_bins,
    padded_batches,
    ragged_batch,
    rows_for,
    their_inputs,
)
from bert_core.config import IGNORE_INDEX

STEPS = [(65_536, 512, 1), (65_536, 128, 4), (65_536, 512, 8), (8192, 512, 1), (8192, 128, 1)]


@pytest.mark.parametrize("length", [128, 512])
def test_natural_lengths_are_half_full_with_many_short_and_a_fifth_whole(length):
    lengths = natural_lengths(256, length)
    assert lengths.mean() == pytest.approx(length / 2, rel=0.02)
    assert (lengths == length).mean() == pytest.approx(0.2, abs=0.01)
    assert (lengths < length / 4).mean() > 0.2
    assert lengths.min() >= 8 and (np.diff(lengths) >= 0).all()
    assert (natural_lengths(256, length) == lengths).all()


@pytest.mark.parametrize(("tokens", "length", "parts"), STEPS)
@pytest.mark.parametrize("natural", [False, True])
def test_bins_are_full_of_one_shape_and_hold_about_the_tokens_asked_for(
    tokens, length, natural, parts
):
    rows = make_rows(500, rows_for(tokens, length, natural=natural), length, natural=natural)
    assert rows.num_tokens == pytest.approx(tokens, rel=0.02)
    bins = packed_bins(rows, parts)
    assert len(bins) == parts
    assert sum(each.num_real_tokens for each in bins) == rows.num_tokens
    assert rows.num_tokens >= 0.99 * sum(each.num_slots for each in bins)
    for name in ("input_ids", "masked_ids", "next_sentence"):
        assert len({getattr(each, name).shape for each in bins}) == 1
    assert len({each.layout.cu_seqlens.shape for each in bins}) == 1
    assert {each.layout.max_length for each in bins} == {length}


def rows_of(batch):
    """What a batch of ours computes: each row's tokens, segments, words to predict and label."""
    words = torch.full(batch.input_ids.shape, IGNORE_INDEX)
    used = batch.masked_ids != IGNORE_INDEX
    words[batch.masked_positions[used]] = batch.masked_ids[used]
    found = []
    for first, length, label in zip(
        batch.layout.first_positions, batch.layout.lengths, batch.next_sentence, strict=True
    ):
        here = slice(int(first), int(first + length))
        if label != IGNORE_INDEX:
            assert batch.position_ids[here].tolist() == list(range(length))
            ids = (batch.input_ids, batch.token_type_ids, words)
            found.append((*(tuple(each[here].tolist()) for each in ids), int(label)))
    return found


def their_rows(inputs):
    """The same of what transformers is called with."""
    found = []
    for row, ids in enumerate(inputs["input_ids"]):
        mask = inputs["attention_mask"]
        real = torch.ones_like(ids).bool() if mask is None else mask[row].bool()
        names = ("input_ids", "token_type_ids", "labels")
        values = (tuple(inputs[name][row][real].tolist()) for name in names)
        found.append((*values, int(inputs["next_sentence_label"][row])))
        assert (inputs["labels"][row][~real] == IGNORE_INDEX).all()
    return found


@pytest.mark.parametrize("natural", [False, True])
def test_every_form_has_the_same_rows_and_the_same_words_to_predict(natural):
    rows = make_rows(500, 12, 32, natural=natural)
    expected = sorted(rows_of(ragged_batch(rows)))
    assert len(expected) == 12
    assert sum(word != IGNORE_INDEX for row in expected for word in row[2]) == rows.num_predictions
    for parts in (1, 3):
        for make in (packed_bins, padded_batches):
            assert sorted(row for batch in make(rows, parts) for row in rows_of(batch)) == expected
        inputs = their_inputs(rows, parts)
        assert sorted(row for each in inputs for row in their_rows(each)) == expected
        assert len({each["input_ids"].shape for each in inputs}) == 1
        assert [each["attention_mask"] is None for each in inputs] == [not natural] * parts
        assert [each.layout.is_full for each in padded_batches(rows, parts)] == [
            not natural
        ] * parts


def test_parts_of_unequal_size_are_refused():
    with pytest.raises(ValueError, match="10 rows do not make 4 equal parts"):
        their_inputs(make_rows(500, 10, 32, natural=True), 4)


def test_parts_have_alike_numbers_of_predictions():
    """Their loss is a mean over each part: parts that differ would weigh tokens differently."""
    inputs = their_inputs(make_rows(500, 256, 128, natural=True), 4)
    counts = [int((each["labels"] != IGNORE_INDEX).sum()) for each in inputs]
    assert max(counts) - min(counts) <= 0.005 * sum(counts)

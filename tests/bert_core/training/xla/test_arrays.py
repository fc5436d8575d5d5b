"""Predictions move to their row; rows, masks and labels stay what they were."""

import numpy as np
import pytest
import torch
from static_batches import LENGTH, static_source

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.training.xla.training import arrays_of, in_parts, stacked


def predictions(batch):
    """Place in the flat micro-batch and label of each prediction, in their order."""
    used = batch.masked_ids != IGNORE_INDEX
    return list(
        zip(batch.masked_positions[used].tolist(), batch.masked_ids[used].tolist(), strict=True)
    )


@pytest.fixture(scope="module")
def micro_batches():
    batches = static_source(packed=False, rows=11, micro_batch=4).step(0).micro_batches
    assert [int((each.next_sentence != IGNORE_INDEX).sum()) for each in batches] == [4, 4, 3]
    return batches


def test_a_micro_batch_by_rows(micro_batches):
    for batch in micro_batches:
        arrays = arrays_of(batch, rows_multiple=2)
        assert torch.equal(torch.from_numpy(arrays["input_ids"]).flatten().long(), batch.input_ids)
        segments = torch.from_numpy(arrays["token_type_ids"]).flatten().long()
        assert torch.equal(segments, batch.token_type_ids)
        assert np.array_equal(arrays["mask"], batch.layout.mask.numpy())
        assert np.array_equal(arrays["next_sentence"], batch.next_sentence.numpy())
        rows, places = np.nonzero(arrays["masked_ids"] != IGNORE_INDEX)
        where = rows * LENGTH + arrays["masked_places"][rows, places]
        labels = arrays["masked_ids"][rows, places]
        assert list(zip(where.tolist(), labels.tolist(), strict=True)) == predictions(batch)
        assert {str(each.dtype) for each in arrays.values()} == {"int32", "bool"}


def test_rows_are_filled_up_without_labels(micro_batches):
    arrays, whole = (arrays_of(micro_batches[0], rows_multiple=n) for n in (3, 1))
    assert {len(each) for each in arrays.values()} == {6}
    for name, each in arrays.items():
        assert np.array_equal(each[:4], whole[name])
    assert not arrays["mask"][4:].any()
    assert (arrays["masked_ids"][4:] == IGNORE_INDEX).all()
    assert (arrays["next_sentence"][4:] == IGNORE_INDEX).all()


def test_micro_batches_that_lack_carry_no_label(micro_batches):
    arrays = stacked(micro_batches, count=5, rows_multiple=2)
    assert {each.shape[:2] for each in arrays.values()} == {(5, 4)}
    assert np.array_equal(
        arrays["input_ids"][1], arrays_of(micro_batches[1], rows_multiple=2)["input_ids"]
    )
    assert not arrays["mask"][3:].any()
    assert (arrays["masked_ids"][3:] == IGNORE_INDEX).all()
    assert (arrays["next_sentence"][3:] == IGNORE_INDEX).all()
    with pytest.raises(ValueError, match="3 micro-batches where 2"):
        stacked(micro_batches, count=2, rows_multiple=2)


def test_parts_of_micro_batches_are_their_rows_in_turn(micro_batches):
    whole = stacked(micro_batches, count=3, rows_multiple=1)
    halves = in_parts(whole, 2)
    for name, each in halves.items():
        assert each.shape[:2] == (6, 2)
        assert np.array_equal(np.concatenate(each), np.concatenate(whole[name]))
    with pytest.raises(ValueError, match="reshape"):
        in_parts(whole, 3)


def test_packed_rows_are_refused():
    batch = static_source(packed=True).step(0).micro_batches[0]
    with pytest.raises(UserError, match="rows of one shape"):
        arrays_of(batch, rows_multiple=1)


def test_shapes_that_are_not_static_are_refused(small_rows):
    with pytest.raises(ValueError, match="places for predictions in"):
        arrays_of(small_rows, rows_multiple=1)


@pytest.fixture
def small_rows(micro_batches):
    """More predictions in the first row than there are places for a row."""
    from dataclasses import replace

    batch = micro_batches[0]
    return replace(batch, masked_positions=torch.arange(8), masked_ids=torch.arange(8))

from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_core.errors import UserError
from bert_core.tasks.encoded_rows import (
    EncodedRows,
    TaskBatchSource,
    concatenated,
    evaluation_batches,
    gather_items,
    tally_text,
)


def rows_of(lengths, *, per_item=1, labels=None, place_counts=None):
    """Rows whose tokens count on; two thirds of a row are segment A."""
    lengths = np.array(lengths)
    counts = np.ones_like(lengths) if place_counts is None else np.array(place_counts)
    items = len(lengths) // per_item
    return EncodedRows(
        input_ids=np.arange(lengths.sum()),
        lengths=lengths,
        first_lengths=2 * lengths // 3,
        places=concatenated([np.arange(count) for count in counts]),
        place_counts=counts,
        labels=np.arange(items) if labels is None else labels,
        labels_per_item=np.ones(items, dtype=np.int64),
        rows_per_item=np.full(items, per_item),
        example=np.arange(len(lengths)),
        num_tokens=lengths,
        truncated=np.zeros(len(lengths), dtype=np.bool_),
        notes={},
    )


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_batch_holds_the_rows_longest_first_and_the_places_in_order(layout):
    rows = rows_of([3, 9, 6], place_counts=[2, 1, 3])
    batch = rows.batch(np.array([2, 0, 1]), layout)
    assert batch.layout.lengths.tolist() == [9, 6, 3]
    assert batch.num_real_tokens == 18 and batch.num_slots == (18 if layout == "packed" else 27)
    # Row 2 begins with token 12, row 0 with 0, row 1 with 3.
    assert batch.input_ids[batch.places].tolist() == [12, 13, 14, 0, 1, 3]
    assert batch.place_counts.tolist() == [3, 2, 1]
    assert batch.labels.tolist() == [2, 0, 1]
    first = batch.layout.first_positions
    assert batch.input_ids[first].tolist() == [3, 12, 0]
    nine = slice(int(first[0]), int(first[0]) + 9)
    assert batch.position_ids[nine].tolist() == list(range(9))
    assert batch.token_type_ids[nine].tolist() == [0] * 6 + [1] * 3
    assert rows.places_of(np.array([2, 0])).tolist() == [3, 4, 5, 0, 1]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_of_a_row_asked_as_a_whole_a_decoder_reads_the_last_token(layout):
    rows = rows_of([3, 9, 6, 4], place_counts=[1, 2, 1, 1])
    rows = replace(rows, places=np.array([0, 0, 4, 0, 2]))
    batch = rows.batch(np.array([2, 0, 1, 3]), layout)
    # Rows 2 and 0 are asked at [CLS] alone: 12..17 and 0..2. Row 1 is asked there and elsewhere,
    # row 3 elsewhere alone.
    assert batch.input_ids[batch.places].tolist() == [12, 0, 3, 7, 20]
    assert batch.input_ids[batch.places_in_decoder].tolist() == [17, 2, 3, 7, 20]


def test_gathered_items_are_those_of_each_set_in_turn():
    first = rows_of([3, 9, 6, 2], per_item=2, place_counts=[2, 1, 3, 0])
    second = rows_of([4, 5], labels=np.zeros((2, 1), dtype=np.float32))
    gathered = gather_items([(first, np.array([1, 0])), (second, np.array([1]))])
    assert gathered.num_items == 3 and gathered.rows_per_item.tolist() == [2, 2, 1]
    batch = gathered.batch(np.arange(3), "packed")
    expected = [first.batch(np.array([1, 0]), "packed"), second.batch(np.array([1]), "packed")]
    for name in ("input_ids", "position_ids", "token_type_ids"):
        at_places = [getattr(each, name)[each.places] for each in (batch, *expected)]
        assert at_places[0].tolist() == [*at_places[1].tolist(), *at_places[2].tolist()]
    assert batch.place_counts.tolist() == [3, 0, 2, 1, 1]
    assert batch.layout.lengths.tolist() == [9, 6, 5, 3, 2]
    assert not len(batch.labels)


def test_rows_of_one_item_stay_together():
    rows = rows_of([3, 9, 6, 2, 4, 1], per_item=3)
    assert rows.num_items == 2 and rows.item_lengths.tolist() == [18, 7]
    assert rows.sum_of_squared_lengths(np.array([1])) == 4 + 16 + 1
    batch = rows.batch(np.array([1, 0]), "packed")
    assert batch.input_ids[batch.places].tolist() == [18, 20, 24, 0, 3, 12]
    assert batch.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        (np.array([3, -100, 0]), [1, 0, 1]),
        (np.array([[1.5], [np.nan], [0]], dtype=np.float32), [1, 0, 1]),
        (np.array([[5, 7], [-100, 3], [-100, -100]]), [1, 0, 0]),
    ],
)
def test_labels_that_carry_no_loss_are_not_counted(labels, counts):
    rows = rows_of([4, 4, 4], labels=labels)
    assert rows.label_counts.tolist() == counts
    nothing = rows.batch(np.array([0]), "packed", without_labels=True)
    missing = torch.isnan if nothing.labels.is_floating_point() else (lambda each: each == -100)
    assert missing(nothing.labels).all() and nothing.num_real_tokens == 0


def test_division_keeps_the_order_and_the_bound():
    rows = rows_of([2, 6, 3, 9])
    items = np.array([3, 1, 2, 0])

    def runs(max_tokens, layout):
        return [run.tolist() for run in rows.divide(items, max_tokens, layout)]

    assert runs(11, "packed") == [[3], [1, 2, 0]]
    assert runs(12, "padded") == [[3], [1, 2], [0]]
    assert runs(1, "packed") == [[3], [1], [2], [0]], "a row alone may be over the bound"
    assert runs(100, "packed") == runs(100, "padded") == [[3, 1, 2, 0]]
    assert rows.divide(items[:0], 10, "packed") == []


def test_division_counts_all_rows_of_an_item():
    rows, items = rows_of([2, 6, 3, 9, 1, 1], per_item=2), np.arange(3)
    assert [run.tolist() for run in rows.divide(items, 20, "packed")] == [[0, 1], [2]]
    for max_tokens in (18, 24, 35, 36, 54):
        runs = rows.divide(items, max_tokens, "padded")
        assert np.concatenate(runs).tolist() == [0, 1, 2]
        for run in runs:
            assert len(run) == 1 or rows.batch(run, "padded").num_slots <= max_tokens
    assert [run.tolist() for run in rows.divide(items, 36, "padded")] == [[0, 1], [2]]


def test_a_tally_has_all_that_is_not_in_the_rows_as_it_was():
    rows = rows_of([3, 9])
    assert tally_text(rows.tally) == "0 examples truncated"
    counted = replace(
        rows,
        truncated=np.array([True]),
        counts={"invalid tags": 0},
        lost={"answers lost": ("a", "b")},
    )
    assert tally_text(counted.tally) == "1 examples truncated, 0 invalid tags, 2 answers lost"


def source(rows, **changes):
    settings = {"batch_size": 8, "max_tokens": 60, "seed": 0, "layout": "packed"}
    return TaskBatchSource(rows, **settings | changes)


def test_each_epoch_goes_once_through_all_in_its_own_order(encoded):
    rows = encoded(30)
    batches = source(rows)
    assert batches.steps_per_epoch == 4
    epochs = [np.concatenate([batches.items(step) for step in range(n, n + 4)]) for n in (0, 4)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(30))] * 2
    assert not np.array_equal(*epochs)
    assert not np.array_equal(source(rows, seed=1).items(0), batches.items(0))
    assert [len(batches.items(step)) for step in range(5)] == [8, 8, 8, 6, 8]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_share_the_same_global_batch_from_any_step_on(encoded, world_size):
    rows = encoded(30)
    for number in (7, 2, 3):  # out of order, and the last step of an epoch
        steps = [source(rows).step(number, rank, world_size) for rank in range(world_size)]
        found = []
        for step in steps:
            for batch in step.micro_batches:
                assert batch.num_slots <= 60
                lengths = batch.layout.lengths.tolist()
                assert lengths == sorted(lengths, reverse=True)
                known = (batch.labels >= 0).tolist()
                found += [length for length, each in zip(lengths, known, strict=True) if each]
        items = source(rows).items(number)
        assert sorted(found) == sorted(rows.item_lengths[items].tolist())
        assert {(step.num_labels, step.num_rows) for step in steps} == {(len(items), len(items))}
        squares = int((rows.item_lengths[items] ** 2).sum())
        assert {step.sum_of_squared_lengths for step in steps} == {squares}


def test_a_rank_without_a_share_has_something_that_teaches_nothing(encoded):
    step = source(encoded(10)).step(1, rank=5, world_size=8)  # two are left for eight
    (batch,) = step.micro_batches
    assert batch.labels.tolist() == [-100] and batch.num_real_tokens == 0
    assert step.num_labels == 2
    with pytest.raises(UserError, match="9 workers cannot share 8 examples"):
        source(encoded(10)).step(0, rank=0, world_size=9)


def test_steps_come_in_order_from_anywhere(encoded):
    batches = source(encoded(30), max_tokens=1000)
    steps = batches.steps(3)
    for number in (3, 4, 5):
        (found,), (expected,) = next(steps).micro_batches, batches.step(number).micro_batches
        assert torch.equal(found.input_ids, expected.input_ids)


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_evaluation_sees_each_item_once(encoded, layout, world_size):
    rows = encoded(30)
    seen = []
    for rank in range(world_size):
        batches = evaluation_batches(
            rows, max_tokens=60, layout=layout, rank=rank, world_size=world_size
        )
        for items, batch in batches:
            assert batch.num_slots <= 60
            assert len(batch.places) == len(items)
            seen += items.tolist()
    assert sorted(seen) == list(range(30))

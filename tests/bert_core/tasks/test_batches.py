import numpy as np
import pytest
import torch

from bert_core.errors import UserError
from bert_core.tasks.batches import TaskBatchSource, evaluation_batches


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

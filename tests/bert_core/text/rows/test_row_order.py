import time

import numpy as np
import pytest
from synthetic_shards import synthetic_shards

from bert_core.text.batches import RowOrder
from bert_core.text.settings import RowSettings
from bert_core.text.shards import Shard, TokenShards

KEY = ("test", 0, 0)


def names(order, positions):
    return list(zip(*(part.tolist() for part in order.names(np.asarray(positions))), strict=True))


def test_an_epoch_holds_every_row_about_once_in_random_order():
    shards = synthetic_shards(40, 300)  # three groups, the last one smaller
    order = RowOrder(shards, RowSettings(), 128, KEY)
    for epoch in (0, 3):
        first = epoch * order.rows_per_epoch
        rows = names(order, np.arange(first, first + order.rows_per_epoch))
        assert {copy for copy, _, _ in rows} == {epoch}
        assert len(set(rows)) > 0.96 * len(rows)
        assert {shard for _, shard, _ in rows} == set(range(40))
    zeroth = names(order, np.arange(order.rows_per_epoch))
    assert len(set(zeroth)) == len(zeroth)  # by its definition, epoch 0 has no surplus


def test_any_position_gives_its_row_without_the_others():
    order = RowOrder(synthetic_shards(20, 300), RowSettings(), 128, KEY)
    positions = np.random.default_rng(0).integers(0, 5 * order.rows_per_epoch, 50)
    together = names(order, positions)
    fresh = RowOrder(synthetic_shards(20, 300), RowSettings(), 128, KEY)
    assert [names(fresh, [p])[0] for p in positions.tolist()] == together


def test_seed_phase_and_epoch_change_the_order():
    shards = synthetic_shards(3, 500)
    order = RowOrder(shards, RowSettings(), 128, KEY)
    other = RowOrder(shards, RowSettings(), 128, ("test", 0, 1))
    assert names(order, np.arange(50)) != names(other, np.arange(50))
    second = names(order, order.rows_per_epoch + np.arange(50))
    assert names(order, np.arange(50)) != [(0, *row[1:]) for row in second]


def test_static_masks_come_round_again():
    order = RowOrder(synthetic_shards(3, 500), RowSettings(static_masks=2), 128, KEY)
    epochs = [
        set(names(order, np.arange(e * order.rows_per_epoch, (e + 1) * order.rows_per_epoch)))
        for e in range(3)
    ]
    assert {copy for copy, _, _ in epochs[1]} == {1}
    assert {copy for copy, _, _ in epochs[2]} == {0}
    assert len(epochs[0] & epochs[2]) > 0.97 * len(epochs[0])


def test_row_counts_are_cached_and_belong_to_their_data(tmp_path):
    shards = synthetic_shards(3, 500)
    order = RowOrder(shards, RowSettings(), 128, KEY, cache_folder=tmp_path)
    again = RowOrder(shards, RowSettings(), 128, KEY, cache_folder=tmp_path)
    assert again.rows_per_epoch == order.rows_per_epoch
    assert len(list(tmp_path.iterdir())) == 1
    RowOrder(shards, RowSettings(), 64, KEY, cache_folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_start_in_the_middle_of_500_million_tokens_takes_under_5_seconds(tmp_path):
    random = np.random.default_rng(0)
    shards = []
    for number in range(62):
        sentences = np.concatenate([[0], np.cumsum(random.integers(3, 48, 320_000))])
        ends = np.cumsum(random.integers(1, 60, 320_000 // 20))
        documents = np.concatenate([[0], ends[ends < 320_000], [320_000]])
        tokens = np.zeros(sentences[-1], dtype=np.uint16)
        shards.append(Shard(f"{number}", tokens, sentences, documents))
    data = TokenShards(tmp_path, "train", shards, 30_000, "none", "big")
    assert data.num_tokens > 490_000_000
    RowOrder(data, RowSettings(), 128, KEY, cache_folder=tmp_path)  # an earlier start counted
    begin = time.perf_counter()
    order = RowOrder(data, RowSettings(), 128, KEY, cache_folder=tmp_path)
    middle = order.rows_per_epoch * 7 // 2
    rows = order.planner.rows(*order.names(np.arange(middle, middle + 256)))
    seconds = time.perf_counter() - begin
    print(f"{data.num_tokens:,} tokens, {seconds:.2f} s to the first rows of epoch 3.5")
    assert len(rows.start) == 256
    assert seconds < 5

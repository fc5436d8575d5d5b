import numpy as np
import pytest

from bert_core.text.rows.packing import pack


def check(lengths, bins, budget, rows_per_bin):
    assert sorted(np.concatenate(bins).tolist()) == list(range(len(lengths)))
    assert max(lengths[rows].sum() for rows in bins) <= budget
    assert max(map(len, bins)) <= rows_per_bin
    assert min(map(len, bins)) >= 1


def test_bins_hold_every_row_once_within_both_limits():
    lengths = np.random.default_rng(0).integers(5, 129, 4000)
    bins = pack(lengths, token_budget=2048, rows_per_bin=128)
    check(lengths, bins, 2048, 128)
    assert lengths.sum() / (len(bins) * 2048) > 0.99


def test_many_short_rows_are_limited_by_their_number():
    lengths = np.full(1000, 5)
    bins = pack(lengths, token_budget=2048, rows_per_bin=64)
    check(lengths, bins, 2048, 64)
    assert len(bins) == 16


def test_at_least_so_many_bins_about_equally_full():
    lengths = np.random.default_rng(0).integers(5, 129, 500)
    bins = pack(lengths, token_budget=100_000, rows_per_bin=500, at_least=10)
    check(lengths, bins, 100_000, 500)
    filled = [lengths[rows].sum() for rows in bins]
    assert len(bins) == 10
    assert max(filled) - min(filled) < 129


def test_a_row_over_the_budget_is_refused():
    with pytest.raises(ValueError, match="budget"):
        pack(np.array([10, 200]), token_budget=128, rows_per_bin=4)

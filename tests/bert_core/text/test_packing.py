import numpy as np
import pytest

from bert_core.text.packing import pack


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


@pytest.mark.parametrize("rows_in_budget", [8, 64, 512])
@pytest.mark.parametrize("share_of_longest", [0.9, 0.4, 0.1])
def test_bins_are_full_whatever_the_lengths(rows_in_budget, share_of_longest):
    """Short rows, which fill holes, must not be left to bins of their own: so many fit in none."""
    random = np.random.default_rng(0)
    lengths = random.integers(5, 513, 512 * max(16, rows_in_budget))
    lengths[random.random(len(lengths)) < share_of_longest] = 512
    bins = pack(lengths, token_budget=512 * rows_in_budget, rows_per_bin=4 * rows_in_budget)
    check(lengths, bins, 512 * rows_in_budget, 4 * rows_in_budget)
    assert lengths.sum() / (len(bins) * 512 * rows_in_budget) > 0.99


def test_bins_of_many_rows_are_alike():
    """A step whose bins hold the long rows alone, and the next the short, teaches unevenly."""
    lengths = np.random.default_rng(0).integers(5, 129, 30_000)
    bins = pack(lengths, token_budget=64 * 128, rows_per_bin=256)
    fewest, most = np.percentile([len(rows) for rows in bins], [2, 98])
    assert most < 1.2 * fewest
    assert all((np.diff(lengths[rows]) <= 0).all() for rows in bins)  # runs of equal length


def test_no_rows_no_bins():
    assert pack(np.array([], dtype=np.int64), token_budget=128, rows_per_bin=4, at_least=0) == []


def test_one_row_a_bin_where_that_is_asked_for():
    lengths = np.array([3, 100, 7, 100])
    bins = pack(lengths, token_budget=128, rows_per_bin=4, at_least=4)
    assert sorted(rows.tolist() for rows in bins) == [[0], [1], [2], [3]]


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

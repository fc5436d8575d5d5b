import numpy as np

from bert_core.text.rng import CounterHash, permutation, ragged_arange


def test_the_same_key_and_counters_give_the_same_bits_in_any_order_and_shape():
    random = CounterHash("seed", 3)
    together = random.bits(np.arange(1000), 7)
    one_by_one = [int(random.bits(i, 7)[0]) for i in range(1000)]
    assert together.tolist() == one_by_one
    assert not np.array_equal(together, CounterHash("seed", 4).bits(np.arange(1000), 7))
    assert not np.array_equal(together, random.bits(np.arange(1000), 8))


def test_a_known_value_holds_across_machines_and_versions():
    # A change here would silently give every run another order of its data.
    bits = CounterHash("bertline", 0, 0, "rows").bits(0, 1, np.arange(3))
    assert bits.tolist() == [1648119670, 2401259607, 2048754309]


def test_bits_are_uniform_and_counters_avalanche():
    random = CounterHash("uniform")
    counters = np.arange(200_000)
    share_of_ones = np.unpackbits(random.bits(counters).view(np.uint8)).mean()
    assert abs(share_of_ones - 0.5) < 0.002
    flipped = np.bitwise_count(random.bits(counters) ^ random.bits(counters ^ 1))
    assert abs(flipped.mean() - 16) < 0.05
    assert abs(random.uniform(counters).mean() - 0.5) < 0.003
    drawn = np.bincount(random.below(10, counters), minlength=10)
    assert np.all(np.abs(drawn - 20_000) < 600)


def test_permutation_visits_everything_once():
    order = permutation(CounterHash("order"), 5000)
    assert np.array_equal(np.sort(order), np.arange(5000))
    assert np.abs(np.corrcoef(order, np.arange(5000))[0, 1]) < 0.05


def test_ragged_arange():
    starts, lengths = np.array([5, 0, 9]), np.array([2, 0, 3])
    assert ragged_arange(starts, lengths).tolist() == [5, 6, 9, 10, 11]
    assert len(ragged_arange(np.empty(0, int), np.empty(0, int))) == 0

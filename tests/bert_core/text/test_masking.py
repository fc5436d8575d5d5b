"""Random numbers by counter, the settings of rows, and what is masked in them."""

import numpy as np
import pytest
from pydantic import ValidationError
from synthetic_shards import CLS, MASK, SEP, vocabulary

from bert_core.settings import BatchSettings, RowSettings
from bert_core.text.masking import Masker, max_predictions, next_tokens, prediction_counts
from bert_core.text.rng import CounterHash, permutation, ragged_arange
from bert_core.word_marks import begins_word

NUM_ROWS, LENGTH = 2000, 128


def make_rows(vocab_size=30_000):
    random = np.random.default_rng(0)
    lengths = random.integers(5, LENGTH + 1, NUM_ROWS)
    lengths[:200] = LENGTH
    input_ids = random.integers(5, vocab_size, lengths.sum())
    first = np.cumsum(lengths) - lengths
    input_ids[first] = CLS
    input_ids[first + lengths // 2] = SEP
    input_ids[first + lengths - 1] = SEP
    names = (np.zeros(NUM_ROWS, int), np.zeros(NUM_ROWS, int), np.arange(NUM_ROWS))
    return input_ids, lengths, names


def mask(settings=None, copy=0):
    input_ids, lengths, names = make_rows()
    masker = Masker(settings or RowSettings(), vocabulary(), LENGTH, ("test", 0, 0))
    names = (names[0] + copy, *names[1:])
    return input_ids, lengths, masker(input_ids, lengths, names)


@pytest.mark.parametrize("whole_word", [False, True])
def test_shares_of_what_stands_in_a_hidden_place(whole_word):
    input_ids, _, masked = mask(RowSettings(whole_word=whole_word))
    now = masked.input_ids[masked.positions]
    assert abs((now == MASK).mean() - 0.8) < 0.01
    assert abs((now == masked.labels).mean() - 0.1) < 0.01
    random = now[(now != MASK) & (now != masked.labels)]
    assert abs(len(random) / len(now) - 0.1) < 0.01
    assert len(np.unique(random)) > 0.9 * len(random)  # from all over the vocabulary
    untouched = np.ones(len(input_ids), bool)
    untouched[masked.positions] = False
    assert np.array_equal(masked.input_ids[untouched], input_ids[untouched])


@pytest.mark.parametrize(
    ("mask_share", "random_share"), [(1, 0), (0.8, 0), (0.8, 0.2), (0, 0.2), (0, 1), (0.5, 0.25)]
)
def test_the_shares_are_those_asked_for(mask_share, random_share):
    """The paper's table 8; what is predicted, and where, they do not change."""
    _, _, usual = mask()
    settings = RowSettings(mask_token_share=mask_share, random_token_share=random_share)
    input_ids, _, masked = mask(settings)
    assert np.array_equal(masked.positions, usual.positions)
    now = masked.input_ids[masked.positions]
    same = now == masked.labels
    assert abs((now == MASK).mean() - mask_share) < 0.01
    assert abs(same.mean() - (1 - mask_share - random_share)) < 0.01
    assert abs((~same & (now != MASK)).mean() - random_share) < 0.01
    if mask_share + random_share == 1:
        assert same.mean() < 1e-3, "but a random token that is the right one by chance"
    if not mask_share:
        assert MASK not in now[same] and (now == MASK).mean() < 1e-3


@pytest.mark.parametrize(
    ("rate", "at_128", "at_512"), [(0.1, 13, 52), (0.3, 39, 154), (0.5, 64, 256)]
)
def test_the_most_in_a_row_follows_the_rate(rate, at_128, at_512):
    settings = RowSettings(masked_share=rate)
    _, lengths, masked = mask(settings)
    expected = [min(at_128, max(1, round(n * rate))) for n in lengths.tolist()]
    # A row of few ordinary tokens has [CLS] and two [SEP] that are never hidden.
    expected = np.minimum(expected, lengths - 3)
    assert np.abs(masked.num_predictions - expected).max() == 0
    assert max_predictions(settings, 128) == at_128 and max_predictions(settings, 512) == at_512


def test_left_to_right_predicts_all_but_the_first():
    settings = RowSettings(objective="left_to_right")
    lengths = np.array([128, 5])
    assert prediction_counts(lengths, settings, 128).tolist() == [127, 4]
    assert max_predictions(settings, 128) == 127


@pytest.mark.parametrize("whole_word", [False, True])
def test_special_tokens_are_never_hidden_and_labels_are_what_stood_there(whole_word):
    input_ids, _, masked = mask(RowSettings(whole_word=whole_word))
    assert np.array_equal(masked.labels, input_ids[masked.positions])
    assert not np.isin(masked.labels, [CLS, SEP, MASK]).any()


def test_every_row_predicts_its_share():
    _, lengths, masked = mask()
    expected = [min(20, max(1, round(n * 0.15))) for n in lengths.tolist()]
    assert masked.num_predictions.tolist() == expected
    assert prediction_counts(lengths, RowSettings(), LENGTH).tolist() == expected
    assert max_predictions(RowSettings(), 128) == 20
    assert max_predictions(RowSettings(), 512) == 77


def test_places_are_equally_likely():
    input_ids, lengths, masked = mask()
    first = np.cumsum(lengths) - lengths
    hits = np.zeros(LENGTH)
    for row in range(200):  # those of full length
        here = (masked.positions >= first[row]) & (masked.positions < first[row] + LENGTH)
        hits[masked.positions[here] - first[row]] += 1
    ordinary = np.delete(hits, [0, LENGTH // 2, LENGTH - 1])
    assert ordinary.sum() == 200 * 19
    assert ordinary.std() < 2 * np.sqrt(ordinary.mean())


def test_whole_words_are_hidden_together():
    input_ids, lengths, masked = mask(RowSettings(whole_word=True))
    continues = ~begins_word(input_ids, vocabulary().marks)
    chosen = np.zeros(len(input_ids), bool)
    chosen[masked.positions] = True
    wanted = prediction_counts(lengths, RowSettings(), LENGTH)
    row = np.repeat(np.arange(NUM_ROWS), lengths)
    full = masked.num_predictions[row] > 0
    # A piece shares the fate of the one before it, but in rows too small for their shortest word.
    pieces = np.flatnonzero(continues & full)
    pieces = pieces[~np.isin(input_ids[pieces - 1], [CLS, SEP])]
    agree = chosen[pieces] == chosen[pieces - 1]
    split_rows = np.unique(row[pieces[~agree]])
    assert len(split_rows) < 0.15 * NUM_ROWS
    assert np.all(wanted[split_rows] <= 3)
    assert np.all(masked.num_predictions >= 1)
    assert np.all(masked.num_predictions <= wanted)
    assert masked.num_predictions.sum() > 0.9 * wanted.sum()


def test_masks_depend_on_the_copy_and_on_nothing_else():
    _, _, first = mask()
    _, _, again = mask()
    _, _, other = mask(copy=1)
    assert np.array_equal(first.positions, again.positions)
    assert np.array_equal(first.input_ids, again.input_ids)
    assert not np.array_equal(first.positions, other.positions)


def test_a_row_is_masked_alike_alone_and_among_others():
    input_ids, lengths, masked = mask()
    first = int(lengths[:700].sum())
    alone = Masker(RowSettings(), vocabulary(), LENGTH, ("test", 0, 0))(
        input_ids[first : first + lengths[700]],
        lengths[700:701],
        (np.array([0]), np.array([0]), np.array([700])),
    )
    assert np.array_equal(alone.input_ids, masked.input_ids[first : first + lengths[700]])


def test_every_token_but_a_rows_last_predicts_the_one_after_it():
    ids = np.array([CLS, 10, 11, SEP, 12, SEP, CLS, 13, SEP])
    rows = next_tokens(ids, np.array([6, 3]))
    assert rows.positions.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert rows.labels.tolist() == [10, 11, SEP, 12, SEP, 13, SEP]
    assert rows.num_predictions.tolist() == [5, 2]
    assert np.array_equal(rows.input_ids, ids), "nothing is hidden"


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


def test_defaults_are_the_papers():
    rows, batch = RowSettings(), BatchSettings()
    assert rows.objective == "mlm_nsp" and not rows.whole_word and rows.static_masks is None
    shares = rows.masked_share, rows.mask_token_share, rows.random_token_share
    assert shares == (0.15, 0.8, 0.1)
    assert rows.short_row_share == 0.1
    assert batch.global_batch_size == 256 and not batch.packed


@pytest.mark.parametrize("settings", [RowSettings, BatchSettings])
def test_every_field_says_what_it_is_and_no_other_is_taken(settings):
    assert all(field.description for field in settings.model_fields.values())
    with pytest.raises(ValidationError, match="shares"):
        settings(shares=0.5)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (RowSettings, {"masked_share": 0}),
        (RowSettings, {"masked_share": 1}),
        (RowSettings, {"objective": "nsp"}),
        (RowSettings, {"input_format": "pairs"}),
        (RowSettings, {"static_masks": 0}),
        (BatchSettings, {"global_batch_size": 0}),
        (BatchSettings, {"micro_batch_size": 0}),
    ],
)
def test_what_gives_no_rows_is_refused(settings, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        settings(**wrong)


@pytest.mark.parametrize("mask, random, same", [(1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0, 1)])
def test_the_shares_of_masks_make_one(mask, random, same):
    """The paper's table 8, and what its rows leave."""
    rows = RowSettings(mask_token_share=mask, random_token_share=random)
    assert rows.same_token_share == pytest.approx(same, abs=1e-12)


def test_more_than_all_of_the_masks_is_refused():
    said = "mask_token_share 0.9 and random_token_share 0.2 are more than 1 together"
    with pytest.raises(ValidationError, match=said):
        RowSettings(mask_token_share=0.9, random_token_share=0.2)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(
        ValidationError, match="mlm_nsp needs pairs of segments, not full_sentences"
    ):
        RowSettings(input_format="full_sentences")
    RowSettings(input_format="full_sentences", objective="left_to_right")
    for name, value in (("masked_share", 0.3), ("mask_token_share", 0.5), ("whole_word", True)):
        with pytest.raises(ValidationError, match=f"left_to_right masks nothing: leave out {name}"):
            RowSettings(**{"objective": "left_to_right", name: value})

import numpy as np
import pytest
from synthetic_shards import CLS, MASK, SEP, vocabulary

from bert_core.text.masking import Masker, max_predictions, prediction_counts
from bert_core.text.settings import RowSettings

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
    continues = vocabulary().is_continuation[input_ids]
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

import numpy as np
import pytest
from tokenizers import Tokenizer

from bert_core.tasks.sequences import encode_sequences, truncate_pairs


def by_tokenizers(tokenizer, first, second, max_length):
    """What the tokenizers library makes of the same texts, cut by itself."""
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(max_length, strategy="longest_first")
    inputs = first if second is None else list(zip(first, second, strict=True))
    return cutting.encode_batch(inputs)


def sides_of(texts):
    """First texts, and second ones where there are any."""
    second = [each.second for each in texts]
    return [each.first for each in texts], None if second[0] is None else second


@pytest.mark.parametrize("max_length", [8, 15, 16, 200])
@pytest.mark.parametrize("pairs", [False, True])
def test_rows_are_those_of_the_tokenizers_library(tokenizer, some_texts, max_length, pairs):
    first, second = sides_of(some_texts(range(60), pairs=pairs))
    found = encode_sequences(tokenizer, first, second, max_length)
    expected = by_tokenizers(tokenizer, first, second, max_length)
    assert found.lengths.tolist() == [len(each.ids) for each in expected]
    assert found.input_ids.tolist() == [token for each in expected for token in each.ids]
    kinds = [each.type_ids for each in expected]
    assert found.first_lengths.tolist() == [each.count(0) for each in kinds]
    assert found.truncated.sum() == sum(bool(each.overflowing) for each in expected)
    assert found.truncated.any() == (max_length < 200)


@pytest.mark.parametrize("max_length", [8, 15, 16, 200])
@pytest.mark.parametrize("pairs", [False, True])
def test_cut_on_the_left_the_ends_stay(tokenizer, some_texts, max_length, pairs):
    first, second = sides_of(some_texts(range(60), pairs=pairs))
    found = encode_sequences(tokenizer, first, second, max_length, "left")
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(max_length, strategy="longest_first", direction="left")
    inputs = first if second is None else list(zip(first, second, strict=True))
    expected = cutting.encode_batch(inputs)
    assert found.input_ids.tolist() == [token for each in expected for token in each.ids]
    whole = tokenizer.encode_batch(inputs)
    assert found.num_tokens.tolist() == [len(each.ids) for each in whole]
    assert found.truncated.tolist() == [len(each.ids) > max_length for each in whole]


@pytest.mark.parametrize("max_length", [8, 15, 16, 200])
@pytest.mark.parametrize("pairs", [False, True])
def test_windows_hold_every_token_and_nothing_else(tokenizer, some_texts, max_length, pairs):
    first, second = sides_of(some_texts(range(60), pairs=pairs))
    found = encode_sequences(tokenizer, first, second, max_length, "window")
    assert found.lengths.max() <= max_length
    assert set(found.text.tolist()) == set(range(60)) and (np.diff(found.text) >= 0).all()
    rows = np.split(found.input_ids, np.cumsum(found.lengths)[:-1])
    for number, parts in enumerate(zip(first, second, strict=True) if pairs else zip(first)):
        wholes = [tokenizer.encode(part, add_special_tokens=False).ids for part in parts]
        longer = max(range(len(wholes)), key=lambda part: len(wholes[part]))
        room = max_length - len(parts) - 1
        kept = min(len(wholes[1 - longer]), room // 2) if pairs else 0
        half = max((room - kept) // 2, 1)
        end = 0
        for window, row in enumerate(np.flatnonzero(found.text == number).tolist()):
            length = int(found.first_lengths[row])
            cut = [rows[row][1 : length - 1].tolist(), rows[row][length:-1].tolist()]
            begin, end = window * half, window * half + len(cut[longer])
            assert cut[longer] == wholes[longer][begin : begin + room - kept]
            if pairs:
                assert cut[1 - longer] == wholes[1 - longer][:kept]
        assert end == len(wholes[longer])
        assert found.truncated[number] == (pairs and kept < len(wholes[1 - longer]))
        if found.num_tokens[number] <= max_length:
            assert (found.text == number).sum() == 1 and not found.truncated[number]


def test_the_longer_of_a_pair_gives_way_first():
    first, second = np.array([3, 30, 30, 10, 9]), np.array([4, 5, 40, 10, 30])
    kept = truncate_pairs(first, second, 19)
    assert np.stack(kept, 1).tolist() == [[3, 4], [14, 5], [9, 10], [9, 10], [9, 10]]
    assert np.stack(truncate_pairs(np.array([40]), np.array([30]), 19), 1).tolist() == [[10, 9]]


@pytest.mark.parametrize("overflow", ["right", "left", "window"])
@pytest.mark.parametrize("max_length", [8, 15, 200])
def test_texts_and_pairs_may_stand_side_by_side(tokenizer, some_texts, max_length, overflow):
    first, second = sides_of(some_texts(range(40), pairs=True))
    mixed = [each if number % 3 else None for number, each in enumerate(second)]
    found = encode_sequences(tokenizer, first, mixed, max_length, overflow)
    alone = [
        encode_sequences(tokenizer, [a], None if b is None else [b], max_length, overflow)
        for a, b in zip(first, mixed, strict=True)
    ]
    for name in ("input_ids", "lengths", "first_lengths", "num_tokens", "truncated"):
        expected = np.concatenate([getattr(each, name) for each in alone])
        np.testing.assert_array_equal(getattr(found, name), expected)

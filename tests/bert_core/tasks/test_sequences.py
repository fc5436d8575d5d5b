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


@pytest.mark.parametrize("max_length", [8, 15, 16, 200])
@pytest.mark.parametrize("pairs", [False, True])
def test_rows_are_those_of_the_tokenizers_library(tokenizer, some_texts, max_length, pairs):
    texts = some_texts(range(60), pairs=pairs)
    first = [each.first for each in texts]
    second = [each.second for each in texts] if pairs else None
    found = encode_sequences(tokenizer, first, second, max_length)
    expected = by_tokenizers(tokenizer, first, second, max_length)
    assert found.lengths.tolist() == [len(each.ids) for each in expected]
    assert found.input_ids.tolist() == [token for each in expected for token in each.ids]
    kinds = [each.type_ids for each in expected]
    assert found.first_lengths.tolist() == [each.count(0) for each in kinds]
    assert found.num_truncated == sum(bool(each.overflowing) for each in expected)
    assert (found.num_truncated > 0) == (max_length < 200)


def test_the_longer_of_a_pair_gives_way_first():
    first, second = np.array([3, 30, 30, 10, 9]), np.array([4, 5, 40, 10, 30])
    kept = truncate_pairs(first, second, 19)
    assert np.stack(kept, 1).tolist() == [[3, 4], [14, 5], [9, 10], [9, 10], [9, 10]]
    assert np.stack(truncate_pairs(np.array([40]), np.array([30]), 19), 1).tolist() == [[10, 9]]

import numpy as np
from synthetic_shards import CLS, SEP

from bert_core.text.masking import next_tokens


def test_every_token_but_a_rows_last_predicts_the_one_after_it():
    ids = np.array([CLS, 10, 11, SEP, 12, SEP, CLS, 13, SEP])
    rows = next_tokens(ids, np.array([6, 3]))
    assert rows.positions.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert rows.labels.tolist() == [10, 11, SEP, 12, SEP, 13, SEP]
    assert rows.num_predictions.tolist() == [5, 2]
    assert np.array_equal(rows.input_ids, ids), "nothing is hidden"

"""What a left-to-right model is to predict in rows: after each token the next (Bengio et al. 2003).

Nothing is hidden and nothing is random: a function of the rows alone. Legend: T tokens, R rows,
P predictions.
"""

import numpy as np

from bert_core.text.rows.counter_hash import IntArray
from bert_core.text.rows.masking import MaskedRows


def next_tokens(input_ids: IntArray, lengths: IntArray) -> MaskedRows:
    """The rows of these lengths [R], end to end in `input_ids` [T], with what follows each token.

    [CLS] predicts the first word and every word the one after it, the [SEP]s too; the last token
    of a row predicts nothing, so P is T - R.
    """
    is_last = np.zeros(len(input_ids), dtype=np.bool_)
    is_last[np.cumsum(lengths) - 1] = True
    positions = np.flatnonzero(~is_last)
    return MaskedRows(input_ids, positions, input_ids[positions + 1], lengths - 1)

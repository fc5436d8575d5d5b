import itertools

import numpy as np
import pytest
from synthetic_shards import CLS, SEP, synthetic_shards

from bert_core.text.pairs import RowPlanner, assemble
from bert_core.text.settings import RowSettings

LENGTH = 64


def planned(shards, rows, num_rows=300):
    """A plan of rows of all shards, in no order."""
    planner = RowPlanner(shards, rows, LENGTH, ("test",))
    names = [
        (shard, start)
        for shard in range(len(shards.shards))
        for start in planner.row_starts(0, shard).tolist()
    ]
    names = np.random.default_rng(0).permutation(names)[:num_rows]
    return planner.rows(np.zeros(len(names), dtype=np.int64), names[:, 0], names[:, 1])


def expected_row(shards, plan, row):
    """One row, token by token."""
    data = shards.shards[plan.shard[row]]
    begins = {int(data.sentences[sentence]) for sentence in data.documents[:-1]}
    tokens = [CLS]
    for at in range(plan.a_offset[row], plan.a_offset[row] + plan.a_length[row]):
        # Pairs never run over a document; where segment A begins with one there is no other.
        if plan.next_sentence[row] < 0 and at in begins and at > plan.a_offset[row]:
            tokens.append(SEP)
        tokens.append(int(data.tokens[at]))
    tokens.append(SEP)
    segments = [0] * len(tokens)
    if plan.next_sentence[row] >= 0:
        other = shards.shards[plan.b_shard[row]].tokens
        begin, length = plan.b_offset[row], plan.b_length[row]
        tokens += [*other[begin : begin + length].tolist(), SEP]
        segments += [1] * (length + 1)
    return tokens, segments


@pytest.mark.parametrize(
    "rows",
    [RowSettings(), RowSettings(objective="mlm", input_format="full_sentences")],
    ids=["pairs", "full_sentences"],
)
def test_rows_are_what_a_reader_would_copy_by_hand(rows):
    shards = synthetic_shards(3, 500, sentences_per_document=3)
    plan = planned(shards, rows)
    input_ids, token_type_ids = assemble(shards, plan, cls_id=CLS, sep_id=SEP)
    ends = np.concatenate([[0], np.cumsum(plan.lengths)]).tolist()
    assert len(input_ids) == len(token_type_ids) == ends[-1]
    for row, (begin, end) in enumerate(itertools.pairwise(ends)):
        tokens, segments = expected_row(shards, plan, row)
        assert input_ids[begin:end].tolist() == tokens
        assert token_type_ids[begin:end].tolist() == segments
    if rows.input_format == "full_sentences":
        assert plan.num_separators.max() > 1


def test_no_rows_no_tokens():
    shards = synthetic_shards(1, 100)
    nothing = planned(shards, RowSettings()).take(np.array([], dtype=np.int64))
    input_ids, token_type_ids = assemble(shards, nothing, cls_id=CLS, sep_id=SEP)
    assert len(input_ids) == len(token_type_ids) == 0

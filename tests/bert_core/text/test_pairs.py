"""Rows of sentences, and their tokens."""

import itertools

import numpy as np
import pytest
from synthetic_shards import CLS, SEP, synthetic_shards

from bert_core.errors import UserError
from bert_core.settings import RowSettings
from bert_core.text.pairs import RowPlanner, assemble

KEY = ("test", 0, 0)
FULL_SENTENCES = RowSettings(objective="mlm", input_format="full_sentences")


def all_rows(shards, settings=None, sequence_length=128, copy=0):
    planner = RowPlanner(shards, settings or RowSettings(), sequence_length, KEY)
    starts = [planner.row_starts(copy, shard) for shard in range(len(shards.shards))]
    shard = np.repeat(np.arange(len(starts)), [len(s) for s in starts])
    return planner.rows(np.full(len(shard), copy), shard, np.concatenate(starts))


def document_of(shards, shard, token):
    data = shards.shards[shard]
    return int(np.searchsorted(data.sentences[data.documents], token, side="right") - 1)


@pytest.fixture(scope="module")
def shards():
    return synthetic_shards(3, 8000)


@pytest.fixture(scope="module")
def rows(shards):
    return all_rows(shards)


def test_no_row_is_longer_than_the_sequence_and_most_fill_it(rows):
    assert rows.lengths.max() <= 128
    assert (rows.lengths == 128).mean() > 0.7
    assert rows.a_length.min() >= 1
    assert rows.b_length.min() >= 1


def test_half_of_the_rows_that_can_be_are_is_next(shards, rows):
    last_of_document = np.array(
        [
            start + 1 in shards.shards[shard].documents
            for shard, start in zip(rows.shard, rows.start, strict=True)
        ]
    )
    free = rows.next_sentence[~last_of_document]
    assert abs((free == 0).mean() - 0.5) < 0.02
    assert np.all(rows.next_sentence[last_of_document] == 1)
    assert 0.45 < (rows.next_sentence == 0).mean() <= 0.51


def test_one_row_in_ten_is_planned_short():
    # Documents and sentences so long that only a short plan makes a short row.
    shards = synthetic_shards(2, 20_000, longest_sentence=5, sentences_per_document=4000)
    rows = all_rows(shards)
    assert abs((rows.lengths < 120).mean() - 0.1) < 0.02
    none = all_rows(shards, RowSettings(short_row_share=0.0))
    assert (none.lengths < 120).mean() < 0.01


def test_segments_of_is_next_rows_adjoin_and_others_come_from_another_document(shards, rows):
    is_next = rows.next_sentence == 0
    cut = rows.lengths >= 128
    untouched = is_next & ~cut
    assert untouched.any()
    end_of_a = rows.a_offset + rows.a_length
    assert np.array_equal(end_of_a[untouched], rows.b_offset[untouched])
    for i in np.flatnonzero(~is_next)[:2000]:
        own = (rows.shard[i], document_of(shards, rows.shard[i], rows.a_offset[i]))
        other = (rows.b_shard[i], document_of(shards, rows.b_shard[i], rows.b_offset[i]))
        assert own != other


def test_second_segments_come_from_every_document_about_equally(shards, rows):
    drawn = [
        (rows.b_shard[i], document_of(shards, rows.b_shard[i], rows.b_offset[i]))
        for i in np.flatnonzero(rows.next_sentence == 1)
    ]
    documents = shards.num_documents
    assert len(set(drawn)) > 0.9 * documents
    counts = np.unique([f"{a}/{b}" for a, b in drawn], return_counts=True)[1]
    assert counts.max() < 6 * len(drawn) / documents


def test_no_segment_leaves_its_document(shards, rows):
    for offset, length, shard in (
        (rows.a_offset, rows.a_length, rows.shard),
        (rows.b_offset, rows.b_length, rows.b_shard),
    ):
        for i in range(0, len(offset), 7):
            first = document_of(shards, shard[i], offset[i])
            last = document_of(shards, shard[i], offset[i] + length[i] - 1)
            assert first == last


def test_rows_cover_the_corpus(shards):
    """What one epoch cuts off where a row is full, others show: 93 % in one, all in ten."""
    seen = [np.zeros(shard.num_tokens, bool) for shard in shards.shards]
    shares = []
    for copy in range(10):
        rows = all_rows(shards, copy=copy)
        for shard, offset, length in (
            (rows.shard, rows.a_offset, rows.a_length),
            (rows.b_shard, rows.b_offset, rows.b_length),
        ):
            for i in range(len(offset)):
                seen[shard[i]][offset[i] : offset[i] + length[i]] = True
        shares.append(np.mean(np.concatenate(seen)))
    assert shares[0] > 0.92
    assert shares[-1] > 0.9999


def test_truncation_takes_from_both_ends_of_the_longer_segment():
    shards = synthetic_shards(2, 4000, longest_sentence=300)
    planner = RowPlanner(shards, RowSettings(short_row_share=0), 128, KEY)
    start = planner.row_starts(0, 0)
    zeros = np.zeros_like(start)
    rows = planner.rows(zeros, zeros, start)
    sentences = shards.shards[0].sentences
    cut = rows.lengths == 128
    front = (rows.a_offset - sentences[rows.start])[cut]
    assert (front > 0).mean() > 0.3  # tokens go from the front …
    ends = np.isin(rows.a_offset + rows.a_length, sentences)
    assert (~ends[cut]).mean() > 0.3  # … and from the back
    long_pairs = cut & (rows.a_length > 10) & (rows.b_length > 10)
    assert np.abs(rows.a_length - rows.b_length)[long_pairs & (rows.a_length < 70)].min() <= 1


def test_other_copies_have_other_rows_and_the_same_copy_the_same():
    shards = synthetic_shards(2, 3000)
    first, again, other = (all_rows(shards, copy=copy) for copy in (0, 0, 1))
    assert np.array_equal(first.b_offset, again.b_offset)
    assert not np.array_equal(first.start[: len(other.start)], other.start[: len(first.start)])


def test_full_sentences_fill_rows_across_documents_without_pairs():
    shards = synthetic_shards(2, 4000, sentences_per_document=3)
    rows = all_rows(shards, FULL_SENTENCES)
    assert np.all(rows.next_sentence == -1)
    assert np.all(rows.b_length == 0)
    assert rows.lengths.max() <= 128
    assert rows.lengths.mean() > 100
    assert rows.num_separators.max() >= 2
    total = sum(shard.num_tokens for shard in shards.shards)
    assert rows.a_length.sum() == total  # each token stands in exactly one row


def test_a_lone_document_has_no_other_to_take_a_segment_from():
    shards = synthetic_shards(1, 50, sentences_per_document=1000)
    for objective in ("mlm_nsp", "mlm", "left_to_right"):
        with pytest.raises(UserError, match=r"--rows\.input_format full_sentences"):
            RowPlanner(shards, RowSettings(objective=objective), 128, KEY)
    assert len(all_rows(shards, FULL_SENTENCES).start) > 5


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

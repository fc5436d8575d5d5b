"""The order of rows, their packing into bins, and the batches of any step."""

import hashlib
import itertools
import time

import numpy as np
import pytest
import torch
from synthetic_shards import CLS, MASK, PAD, SEP, synthetic_shards, vocabulary

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.model.layout import Packed, Padded
from bert_core.settings import BINS_VERSION, BatchSettings, RowSettings
from bert_core.text.batches import BatchSource, Replay, RowOrder
from bert_core.text.packing import pack
from bert_core.text.shards import Shard, TokenShards

LENGTH = 64


def make_source(*, packed=False, static=False, rows=None, shards=None, replay=None, **batch):
    return BatchSource(
        shards or synthetic_shards(3, 3000),
        vocabulary(),
        rows=rows or RowSettings(),
        batch=BatchSettings(
            **{"global_batch_size": 32, "micro_batch_size": 8} | batch | {"packed": packed}
        ),
        sequence_length=LENGTH,
        seed=1,
        phase=0,
        static_shapes=static,
        replay=replay,
    )


def rows_of(batch):
    """Each row of a micro-batch with its masks and labels, as comparable bytes."""
    if isinstance(batch.layout, Packed):
        offsets = batch.layout.cu_seqlens.long()
    else:
        offsets = torch.arange(len(batch.layout.mask) + 1) * batch.layout.mask.shape[1]
    real = batch.masked_ids != IGNORE_INDEX
    positions, ids = batch.masked_positions[real], batch.masked_ids[real]
    for row, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        here = (positions >= begin) & (positions < end)
        if not here.any():
            continue  # padding
        if isinstance(batch.layout, Padded):
            end = begin + int(batch.layout.mask[row].sum())
        yield (
            batch.input_ids[begin:end].numpy().tobytes(),
            batch.token_type_ids[begin:end].numpy().tobytes(),
            batch.position_ids[begin:end].numpy().tobytes(),
            (positions[here] - begin).numpy().tobytes(),
            ids[here].numpy().tobytes(),
            int(batch.next_sentence[row]),
        )


def global_batch(source, step, world_size):
    shares = [source.step(step, rank, world_size) for rank in range(world_size)]
    rows = sorted(r for share in shares for batch in share.micro_batches for r in rows_of(batch))
    totals = {
        (share.num_predictions, share.num_rows, share.sum_of_squared_lengths) for share in shares
    }
    assert len(totals) == 1
    return rows, totals.pop()


@pytest.mark.parametrize(
    ("packed", "static", "rows"),
    [
        (False, False, {}),
        (True, False, {"whole_word": True}),
        (False, True, {"masked_share": 0.95}),
        (True, True, {"objective": "left_to_right"}),
    ],
)
def test_global_batches_are_the_same_for_any_number_of_ranks_and_any_start(packed, static, rows):
    rows = RowSettings(**rows)
    reference = make_source(packed=packed, static=static, rows=rows)
    for step in (0, 1, 255, 700):
        expected, totals = global_batch(reference, step, 1)
        predictions = sum(len(np.frombuffer(row[4], np.int64)) for row in expected)
        squares = sum(len(np.frombuffer(row[0], np.int64)) ** 2 for row in expected)
        assert totals == (predictions, len(expected), squares)
        for world_size in (2, 3, 8):
            # A source made now has no memory of the steps before.
            fresh = make_source(packed=packed, static=static, rows=rows)
            assert global_batch(fresh, step, world_size) == (expected, totals)


REPLAYED = 20_000
"""Tokens from here on are of the second corpus alone."""


def corpora(share):
    """A corpus, and a second one to mix in, whose tokens are not those of the first."""
    first = synthetic_shards(3, 1500, vocab_size=REPLAYED)
    second = synthetic_shards(2, 400, seed=5, vocab_size=29_000 - REPLAYED)
    for shard in second.shards:
        np.add(shard.tokens, REPLAYED - 5, out=shard.tokens)
    return first, Replay(second, share)


def is_replayed(row):
    tokens = np.frombuffer(row[0], np.int64)
    of_second = {bool(token >= REPLAYED) for token in tokens[tokens > MASK]}
    assert len(of_second) == 1, "a row has tokens of one corpus"
    return of_second.pop()


@pytest.mark.some(1)
@pytest.mark.parametrize(("packed", "share"), [(True, 0.05), (False, 0.3)])
def test_a_second_corpus_has_its_share_and_leaves_the_order_of_the_first(packed, share):
    rows = RowSettings(objective="left_to_right")  # nothing is masked, nothing drawn
    shards, replay = corpora(share)
    source = make_source(packed=packed, rows=rows, shards=shards, replay=replay)
    steps = source.steps_per_window  # packed rows move within a window
    mixed = [row for step in range(steps) for row in global_batch(source, step, 1)[0]]
    replayed = [row for row in mixed if is_replayed(row)]
    assert len(replayed) == int(len(mixed) * share)
    assert len({row[0] for row in replayed[:100]}) > 90

    alone = make_source(rows=rows, shards=shards)
    count = len(mixed) - len(replayed)
    before = [row for step in range(-(-count // 32)) for row in global_batch(alone, step, 1)[0]]
    assert not {row[0] for row in mixed if not is_replayed(row)} - {row[0] for row in before}

    for step in (1, steps + 3):
        expected = global_batch(source, step, 1)
        for world_size in (1, 3):
            fresh = make_source(packed=packed, rows=rows, shards=shards, replay=replay)
            assert global_batch(fresh, step, world_size) == expected


@pytest.mark.slow
def test_padded_and_packed_show_the_same_rows_over_a_window():
    batch = {"global_batch_size": 256, "micro_batch_size": 16}
    padded, packed = make_source(static=True, **batch), make_source(packed=True, **batch)
    steps = 8192 // 256
    one = sorted(itertools.chain(*(global_batch(padded, s, 1)[0] for s in range(steps))))
    other = sorted(itertools.chain(*(global_batch(packed, s, 1)[0] for s in range(steps))))
    assert one == other


def test_the_iterator_gives_the_steps_from_where_it_starts():
    source = make_source()
    for step, batches in enumerate(itertools.islice(source.steps(5), 4), 5):
        expected = source.step(step)
        assert batches.num_predictions == expected.num_predictions
        for got, want in zip(batches.micro_batches, expected.micro_batches, strict=True):
            assert torch.equal(got.input_ids, want.input_ids)


def test_rows_decode_to_what_stands_in_the_shards():
    shards = synthetic_shards(3, 3000)
    source = make_source(shards=shards, global_batch_size=64)
    text = [shard.tokens.astype(np.int64) for shard in shards.shards]
    joined = np.concatenate(text)
    batch = source.step(3).micro_batches[0]
    ids = batch.input_ids.clone()
    ids[batch.masked_positions] = batch.masked_ids
    offsets = batch.layout.cu_seqlens.tolist()
    for begin, end in itertools.pairwise(offsets):
        row, types = ids[begin:end], batch.token_type_ids[begin:end]
        separators = torch.nonzero(row == SEP).flatten().tolist()
        assert row[0] == CLS
        assert len(separators) == 2
        assert separators[1] == len(row) - 1
        assert types.tolist() == [0] * (separators[0] + 1) + [1] * (len(row) - separators[0] - 1)
        for segment in (row[1 : separators[0]], row[separators[0] + 1 : -1]):
            first = np.flatnonzero(joined == int(segment[0]))
            assert any(
                np.array_equal(joined[at : at + len(segment)], segment.numpy()) for at in first
            )


def test_full_sentence_rows_have_one_segment_and_separators_between_documents():
    shards = synthetic_shards(3, 3000, sentences_per_document=3)
    rows = RowSettings(objective="mlm", input_format="full_sentences")
    batch = make_source(shards=shards, rows=rows).step(0).micro_batches[0]
    ids = batch.input_ids.clone()
    ids[batch.masked_positions] = batch.masked_ids
    assert not batch.token_type_ids.any()
    assert (batch.next_sentence == IGNORE_INDEX).all()
    begins = {
        int(shard.tokens[shard.sentences[d]])
        for shard in shards.shards
        for d in shard.documents[:-1]
    }
    inner = 0
    for begin, end in itertools.pairwise(batch.layout.cu_seqlens.tolist()):
        row = ids[begin:end].tolist()
        assert row[0] == CLS
        assert row[-1] == SEP
        for place in (i for i, token in enumerate(row[:-1]) if token == SEP):
            assert row[place + 1] in begins
            inner += 1
    assert inner > 1


def test_all_objectives_have_the_same_rows():
    """So that the ablation of table 5 compares objectives and not data."""
    (pairs,) = make_source(micro_batch_size=32).step(5).micro_batches
    (alone,) = (
        make_source(micro_batch_size=32, rows=RowSettings(objective="mlm")).step(5).micro_batches
    )
    for name in ("input_ids", "token_type_ids", "position_ids", "masked_positions", "masked_ids"):
        assert torch.equal(getattr(pairs, name), getattr(alone, name)), name
    assert {0, 1} == set(pairs.next_sentence.tolist())
    assert (alone.next_sentence == IGNORE_INDEX).all()
    rows = RowSettings(objective="left_to_right")
    (ahead,) = make_source(micro_batch_size=32, rows=rows).step(5).micro_batches
    unmasked = pairs.input_ids.clone()
    unmasked[pairs.masked_positions] = pairs.masked_ids
    assert torch.equal(ahead.input_ids, unmasked)
    assert torch.equal(ahead.token_type_ids, pairs.token_type_ids)
    assert torch.equal(ahead.layout.cu_seqlens, pairs.layout.cu_seqlens)
    assert (ahead.next_sentence == IGNORE_INDEX).all()


@pytest.mark.parametrize("layout", [{}, {"static": True}, {"packed": True, "static": True}])
def test_left_to_right_each_token_predicts_the_next_of_its_own_row(layout):
    source = make_source(rows=RowSettings(objective="left_to_right"), **layout)
    step = source.step(2)
    seen = 0
    for batch in step.micro_batches:
        for ids, _, _, positions, labels, _ in rows_of(batch):
            ids, positions, labels = (
                np.frombuffer(each, np.int64) for each in (ids, positions, labels)
            )
            assert positions.tolist() == list(range(len(ids) - 1))
            assert np.array_equal(labels, ids[1:])
            assert ids[0] == CLS and ids[-1] == SEP and MASK not in ids
            seen += len(labels)
    assert seen == step.num_predictions
    assert sum(batch.num_real_tokens for batch in step.micro_batches) == seen + step.num_rows


def test_separators_are_counted_for_those_who_predict_them():
    source = make_source(rows=RowSettings(objective="left_to_right"))
    labels = torch.cat([batch.masked_ids for batch in source.epoch_zero(300)])
    assert source.separator_share(300) == pytest.approx((labels == SEP).double().mean().item())


@pytest.mark.parametrize(
    ("step", "settings", "expected"),
    [
        (3, {"packed": False}, "0b824bf24438b37a"),
        (3, {"packed": True}, "3706a752cc03634b"),
        (
            40,
            {"packed": True, "global_batch_size": 256, "micro_batch_size": 32},
            "f125b123d6a9b674",
        ),
    ],
)
def test_rows_and_masks_are_those_of_earlier_versions(step, settings, expected):
    """A run that was begun with them goes on with the same, bit for bit.

    Whoever changes the packed ones on purpose raises `BINS_VERSION`.
    """
    digest = hashlib.sha256(bytes([BINS_VERSION]) if settings["packed"] else b"")
    for batch in make_source(**settings).step(step).micro_batches:
        for each in (
            batch.input_ids,
            batch.token_type_ids,
            batch.masked_positions,
            batch.masked_ids,
        ):
            digest.update(each.numpy().tobytes())
        digest.update(batch.next_sentence.numpy().tobytes())
    assert digest.hexdigest()[:16] == expected


@pytest.mark.parametrize("objective", ["mlm_nsp", "left_to_right"])
def test_static_shapes_never_change(objective):
    for packed in (False, True):
        rows = RowSettings(objective=objective)
        source = make_source(packed=packed, static=True, rows=rows)
        shapes = set()
        for step in (0, 1, 300, 900):
            for rank in range(3):
                for batch in source.step(step, rank, 3).micro_batches:
                    layout = batch.layout
                    inner = layout.cu_seqlens if isinstance(layout, Packed) else layout.mask
                    shapes.add(
                        (
                            batch.input_ids.shape,
                            batch.masked_positions.shape,
                            batch.next_sentence.shape,
                            inner.shape,
                        )
                    )
        assert len(shapes) == 1, shapes


NATURAL = {"sentences_per_document": 20, "longest_sentence": 60}


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("micro_batch_size", "global_batch_size", "sequence_length", "rows"),
    [
        (8, 256, 128, {}),
        (8, 256, 512, {}),
        (64, 256, 128, {}),
        (512, 4096, 128, {}),
        (32, 256, 128, {"objective": "mlm", "input_format": "full_sentences"}),
        (64, 1024, 512, {"objective": "mlm", "input_format": "full_sentences"}),
    ],
)
def test_packed_bins_are_full_in_every_window(
    micro_batch_size, global_batch_size, sequence_length, rows
):
    source = BatchSource(
        synthetic_shards(3, 20_000, **NATURAL),
        vocabulary(),
        rows=RowSettings(**rows),
        batch=BatchSettings(
            global_batch_size=global_batch_size, micro_batch_size=micro_batch_size, packed=True
        ),
        sequence_length=sequence_length,
        seed=1,
        phase=0,
        static_shapes=True,
    )
    size = source.steps_per_window
    budget = source.step(0).micro_batches[0].num_slots
    for window in (0, 1, 9):
        plan, _ = source._packed_bins(window * size)
        bins = source._windows[window][1]
        assert plan.lengths.sum() / (len(bins) * budget) >= 0.99
        assert len(bins) >= size, "a step has none"


def test_a_step_of_few_rows_has_smaller_bins_that_are_full():
    source = make_source(packed=True, static=True, global_batch_size=64, micro_batch_size=512)
    steps = [source.step(step) for step in range(source.steps_per_window)]
    assert {batch.num_slots for step in steps for batch in step.micro_batches} == {16 * LENGTH}
    assert min(batch.num_real_tokens for step in steps for batch in step.micro_batches) > 0


def test_no_step_has_the_long_rows_alone():
    """Where most rows are full bins come out sorted by length."""
    shards = synthetic_shards(3, 20_000, sentences_per_document=200, longest_sentence=20)
    batch = {"packed": True, "global_batch_size": 256, "micro_batch_size": 16}
    source = make_source(shards=shards, **batch)
    lengths = source._plan(0, source.steps_per_window * 256).lengths
    assert (lengths == LENGTH).mean() > 0.8
    rows = [source.step(step).num_rows for step in range(source.steps_per_window)]
    assert min(rows) > 230 and max(rows) < 300


@pytest.mark.parametrize("masked_share", [0.01, 0.02, 0.15])
def test_there_is_a_place_for_the_one_token_that_is_hidden_in_every_row(masked_share):
    shards = synthetic_shards(3, 3000, sentences_per_document=2, longest_sentence=4)
    source = make_source(
        packed=True, static=True, shards=shards, rows=RowSettings(masked_share=masked_share)
    )
    found = [source.step(step) for step in range(20)]
    hidden = sum(int((b.masked_ids != IGNORE_INDEX).sum()) for s in found for b in s.micro_batches)
    assert hidden == sum(step.num_predictions for step in found)


def test_a_rank_without_rows_gets_a_batch_without_labels():
    source = make_source(packed=True, global_batch_size=16, micro_batch_size=16)
    shares = [source.step(0, rank, 8) for rank in range(8)]
    idle = [share for share in shares if not (share.micro_batches[0].masked_ids >= 0).any()]
    assert idle
    batch = idle[0].micro_batches[0]
    assert batch.input_ids.tolist() == [PAD]
    assert batch.num_real_tokens == 0
    assert (batch.next_sentence == IGNORE_INDEX).all()


def test_more_workers_than_rows_is_refused():
    with pytest.raises(UserError, match="global_batch_size"):
        make_source(global_batch_size=4).step(0, 0, 5)


def test_evaluation_reads_each_row_once_whatever_the_number_of_ranks():
    source = make_source()
    alone = sorted(r for batch in source.epoch_zero(500) for r in rows_of(batch))
    shared = sorted(
        r for rank in range(3) for batch in source.epoch_zero(500, rank, 3) for r in rows_of(batch)
    )
    assert alone == shared
    assert len(alone) == 500
    everything = list(source.epoch_zero(10**9))
    assert sum(len(list(rows_of(batch))) for batch in everything) == source.rows_per_epoch


@pytest.mark.parametrize("packed", [False, True])
def test_evaluation_has_the_shapes_of_a_step_of_few_rows(packed):
    source = make_source(static=True, packed=packed, global_batch_size=6, micro_batch_size=32)
    batches = list(source.epoch_zero(50))
    assert sum(len(list(rows_of(batch))) for batch in batches) == 50
    shapes = {batch.input_ids.shape for batch in [*batches, *source.step(0).micro_batches]}
    assert len(shapes) == 1, "one program"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("micro_batch", "of"), [(8, 32), (32, 32), (64, 32), (5, 7)])
def test_evaluation_fits_into_static_shapes(packed, micro_batch, of):
    """A step has several bins, so that one has room for less than a micro-batch."""
    batch = {"micro_batch_size": micro_batch, "global_batch_size": of, "packed": packed}
    batches = list(make_source(static=True, **batch).epoch_zero(200))
    assert len({each.input_ids.shape for each in batches}) == 1
    plain = make_source().epoch_zero(200)
    assert sorted(r for each in batches for r in rows_of(each)) == sorted(
        r for each in plain for r in rows_of(each)
    )


KEY = ("test", 0, 0)


def names(order, positions):
    return list(zip(*(part.tolist() for part in order.names(np.asarray(positions))), strict=True))


def test_an_epoch_holds_every_row_about_once_in_random_order():
    shards = synthetic_shards(40, 300)  # three groups, the last one smaller
    order = RowOrder(shards, RowSettings(), 128, KEY)
    for epoch in (0, 3):
        first = epoch * order.rows_per_epoch
        rows = names(order, np.arange(first, first + order.rows_per_epoch))
        assert {copy for copy, _, _ in rows} == {epoch}
        assert len(set(rows)) > 0.96 * len(rows)
        assert {shard for _, shard, _ in rows} == set(range(40))
    zeroth = names(order, np.arange(order.rows_per_epoch))
    assert len(set(zeroth)) == len(zeroth)  # by its definition, epoch 0 has no surplus


def test_any_position_gives_its_row_without_the_others():
    order = RowOrder(synthetic_shards(20, 300), RowSettings(), 128, KEY)
    positions = np.random.default_rng(0).integers(0, 5 * order.rows_per_epoch, 50)
    together = names(order, positions)
    fresh = RowOrder(synthetic_shards(20, 300), RowSettings(), 128, KEY)
    assert [names(fresh, [p])[0] for p in positions.tolist()] == together


def test_seed_phase_and_epoch_change_the_order():
    shards = synthetic_shards(3, 500)
    order = RowOrder(shards, RowSettings(), 128, KEY)
    other = RowOrder(shards, RowSettings(), 128, ("test", 0, 1))
    assert names(order, np.arange(50)) != names(other, np.arange(50))
    second = names(order, order.rows_per_epoch + np.arange(50))
    assert names(order, np.arange(50)) != [(0, *row[1:]) for row in second]


def test_static_masks_come_round_again():
    order = RowOrder(synthetic_shards(3, 500), RowSettings(static_masks=2), 128, KEY)
    epochs = [
        set(names(order, np.arange(e * order.rows_per_epoch, (e + 1) * order.rows_per_epoch)))
        for e in range(3)
    ]
    assert {copy for copy, _, _ in epochs[1]} == {1}
    assert {copy for copy, _, _ in epochs[2]} == {0}
    assert len(epochs[0] & epochs[2]) > 0.97 * len(epochs[0])


def test_row_counts_are_cached_and_belong_to_their_data(tmp_path):
    shards = synthetic_shards(3, 500)
    order = RowOrder(shards, RowSettings(), 128, KEY, cache_folder=tmp_path)
    again = RowOrder(shards, RowSettings(), 128, KEY, cache_folder=tmp_path)
    assert again.rows_per_epoch == order.rows_per_epoch
    assert len(list(tmp_path.iterdir())) == 1
    RowOrder(shards, RowSettings(), 64, KEY, cache_folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_start_in_the_middle_of_500_million_tokens_takes_under_5_seconds(tmp_path):
    random = np.random.default_rng(0)
    shards = []
    for number in range(62):
        sentences = np.concatenate([[0], np.cumsum(random.integers(3, 48, 320_000))])
        ends = np.cumsum(random.integers(1, 60, 320_000 // 20))
        documents = np.concatenate([[0], ends[ends < 320_000], [320_000]])
        tokens = np.zeros(sentences[-1], dtype=np.uint16)
        shards.append(Shard(f"{number}", tokens, sentences, documents))
    data = TokenShards(tmp_path, "train", shards, 30_000, "none", "big")
    assert data.num_tokens > 490_000_000
    RowOrder(data, RowSettings(), 128, KEY, cache_folder=tmp_path)  # an earlier start counted
    begin = time.perf_counter()
    order = RowOrder(data, RowSettings(), 128, KEY, cache_folder=tmp_path)
    middle = order.rows_per_epoch * 7 // 2
    rows = order.planner.rows(*order.names(np.arange(middle, middle + 256)))
    seconds = time.perf_counter() - begin
    print(f"{data.num_tokens:,} tokens, {seconds:.2f} s to the first rows of epoch 3.5")
    assert len(rows.start) == 256
    assert seconds < 5


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

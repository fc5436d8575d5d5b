"""What the arms of the pre-training benchmark compute: rows, steps, ablations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_pretraining import small_task, without_compiler

from benchmarks.pretraining import ablation as pretraining_ablation
from benchmarks.pretraining import arms as pretraining_arms
from benchmarks.pretraining.ablation import (
    ThreeProjections,
    ablate,
    ablation_rows,
    chosen_rows,
    split_projections,
)
from benchmarks.pretraining.arms import (
    contestants,
    fast,
    make_rows,
    natural_lengths,
    our_loss,
    our_model,
    ours,
    packed_bins,
    padded_batches,
    ragged_batch,
    rows_for,
    their_inputs,
)
from benchmarks.results import ResultsSoFar
from bert_core.config import IGNORE_INDEX, MODERN_SIZES
from bert_core.errors import UserError

CUDA_ARMS = [
    "ours, plain",
    "ours, fast",
    "transformers, sdpa",
    "transformers, sdpa, compiled",
    "ours, fast, max-autotune",
    "transformers, sdpa, max-autotune",
    "ours, attention dropout",
    "transformers, attention dropout",
]


@pytest.mark.parametrize("natural", [False, True])
def test_all_arms_compute_the_same_in_one_part_and_in_several(natural, monkeypatch):
    without_compiler(monkeypatch)
    chosen = pretraining_arms._on_cuda(small_task(natural=natural, rows=16))
    expected = chosen[0].build(1).loss_and_gradient_norm()
    for each in chosen:
        assert each.build(1).loss_and_gradient_norm() == pytest.approx(expected, rel=1e-4)
        # Theirs takes the mean of each part, and parts differ by a prediction or two.
        tolerance = 2e-2 if each.is_peer else 1e-4
        trial = each.build(4)
        assert len(trial.losses) == 4
        assert trial.loss_and_gradient_norm() == pytest.approx(expected, rel=tolerance)


def test_the_modern_block_computes_what_that_of_transformers_does():
    small = small_task(natural=True, rows=8)
    changes = {"vocab_size": 300, "local_attention": 16, "pad_token_id": 0}
    config = MODERN_SIZES["tiny"].model_copy(update=changes)
    arms = contestants(replace(small, config=config))
    assert [each.name for each in arms] == ["ours", "transformers, sdpa", "transformers, eager"]
    expected = arms[0].build(1).loss_and_gradient_norm()
    for each in arms[1:]:
        assert each.build(1).loss_and_gradient_norm() == pytest.approx(expected, rel=1e-4)
    assert "next_sentence_label" not in their_inputs(small.rows, 1, pairs=False)[0]


@pytest.mark.slow
def test_a_step_trains_and_leaves_no_gradient(monkeypatch):
    without_compiler(monkeypatch)
    for each in pretraining_arms._on_cuda(small_task()):
        trial = each.build(2)
        before = trial.loss_and_gradient_norm()[0]
        for _ in range(5):
            trial.step()
        assert trial.loss_and_gradient_norm()[0] < before
        assert all(weight.grad is None for weight in trial.model.parameters())


def test_what_is_asked_for_is_added_and_what_is_not_there_left_out(monkeypatch):
    without_compiler(monkeypatch)
    task = small_task()
    on_cuda = replace(task, device=torch.device("cuda"), autocast_dtype=torch.bfloat16)
    found = contestants(on_cuda, max_autotune=True, paper_recipe=True)
    assert [each.name for each in found] == CUDA_ARMS
    assert [each.compiled for each in found] == [False, True, False] + 5 * [True]
    assert [contestant.name for contestant in contestants(on_cuda)] == CUDA_ARMS[:4]
    monkeypatch.setattr(pretraining_arms, "find_spec", lambda _: None)
    assert [contestant.name for contestant in contestants(on_cuda)] == CUDA_ARMS[:2]
    assert [contestant.name for contestant in contestants(task)] == ["ours"]


def test_the_papers_recipe_has_dropout_where_the_others_have_none():
    found = contestants(small_task(rows=2), paper_recipe=True)
    dropouts = [each.build(1).model.config.attention_probs_dropout_prob for each in found]
    assert dropouts == [0.0, 0.0, 0.0, 0.1, 0.1]


def test_the_optimizer_is_fused_unless_it_is_not_to_be():
    task = small_task(rows=2)
    fused = ours("", task, packed_bins).build(1).optimizer
    other = ours("", task, packed_bins, fused=False).build(1).optimizer
    assert (fused.defaults["fused"], other.defaults["foreach"]) == (True, True)
    assert not other.defaults["fused"]


@pytest.mark.slow
def test_compiled_it_is_one_graph_with_the_same_loss():
    task = small_task(natural=False)
    model = our_model(task.config, task.device).eval()
    batch = padded_batches(task.rows, 1)[0]
    expected = our_loss(model, task.rows.counts, mode=None)(batch)
    found = our_loss(model, task.rows.counts, mode="default")(batch)
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)


STEPS = [(65_536, 512, 1), (65_536, 128, 4), (65_536, 512, 8), (8192, 512, 1), (8192, 128, 1)]


@pytest.mark.parametrize("length", [128, 512])
def test_natural_lengths_are_half_full_with_many_short_and_a_fifth_whole(length):
    lengths = natural_lengths(256, length)
    assert lengths.mean() == pytest.approx(length / 2, rel=0.02)
    assert (lengths == length).mean() == pytest.approx(0.2, abs=0.01)
    assert (lengths < length / 4).mean() > 0.2
    assert lengths.min() >= 8 and (np.diff(lengths) >= 0).all()
    assert (natural_lengths(256, length) == lengths).all()


@pytest.mark.parametrize(("tokens", "length", "parts"), STEPS)
@pytest.mark.parametrize("natural", [False, True])
def test_bins_are_full_of_one_shape_and_hold_about_the_tokens_asked_for(
    tokens, length, natural, parts
):
    rows = make_rows(500, rows_for(tokens, length, natural=natural), length, natural=natural)
    assert rows.num_tokens == pytest.approx(tokens, rel=0.02)
    bins = packed_bins(rows, parts)
    assert len(bins) == parts
    assert sum(each.num_real_tokens for each in bins) == rows.num_tokens
    assert rows.num_tokens >= 0.99 * sum(each.num_slots for each in bins)
    for name in ("input_ids", "masked_ids", "next_sentence"):
        assert len({getattr(each, name).shape for each in bins}) == 1
    assert len({each.layout.cu_seqlens.shape for each in bins}) == 1
    assert {each.layout.max_length for each in bins} == {length}


def rows_of(batch):
    """What a batch of ours computes: each row's tokens, segments, words to predict and label."""
    words = torch.full(batch.input_ids.shape, IGNORE_INDEX)
    used = batch.masked_ids != IGNORE_INDEX
    words[batch.masked_positions[used]] = batch.masked_ids[used]
    found = []
    for first, length, label in zip(
        batch.layout.first_positions, batch.layout.lengths, batch.next_sentence, strict=True
    ):
        here = slice(int(first), int(first + length))
        if label != IGNORE_INDEX:
            assert batch.position_ids[here].tolist() == list(range(length))
            ids = (batch.input_ids, batch.token_type_ids, words)
            found.append((*(tuple(token_id[here].tolist()) for token_id in ids), int(label)))
    return found


def their_rows(inputs):
    """The same of what transformers is called with."""
    found = []
    for row, ids in enumerate(inputs["input_ids"]):
        mask = inputs["attention_mask"]
        real = torch.ones_like(ids).bool() if mask is None else mask[row].bool()
        names = ("input_ids", "token_type_ids", "labels")
        values = (tuple(inputs[name][row][real].tolist()) for name in names)
        found.append((*values, int(inputs["next_sentence_label"][row])))
        assert (inputs["labels"][row][~real] == IGNORE_INDEX).all()
    return found


@pytest.mark.parametrize("natural", [False, True])
def test_every_form_has_the_same_rows_and_the_same_words_to_predict(natural):
    rows = make_rows(500, 12, 32, natural=natural)
    expected = sorted(rows_of(ragged_batch(rows)))
    assert len(expected) == 12
    assert sum(word != IGNORE_INDEX for row in expected for word in row[2]) == rows.num_predictions
    for parts in (1, 3):
        for make in (packed_bins, padded_batches):
            assert sorted(row for batch in make(rows, parts) for row in rows_of(batch)) == expected
        inputs = their_inputs(rows, parts)
        assert sorted(row for each in inputs for row in their_rows(each)) == expected
        assert len({each["input_ids"].shape for each in inputs}) == 1
        assert [each["attention_mask"] is None for each in inputs] == [not natural] * parts
        assert [batch.layout.is_full for batch in padded_batches(rows, parts)] == [
            not natural
        ] * parts


def test_parts_of_unequal_size_are_refused():
    with pytest.raises(ValueError, match="10 rows do not make 4 equal parts"):
        their_inputs(make_rows(500, 10, 32, natural=True), 4)


def test_parts_have_alike_numbers_of_predictions():
    """Their loss is a mean over each part: parts that differ would weigh tokens differently."""
    inputs = their_inputs(make_rows(500, 256, 128, natural=True), 4)
    counts = [int((each["labels"] != IGNORE_INDEX).sum()) for each in inputs]
    assert max(counts) - min(counts) <= 0.005 * sum(counts)


PEAKS = {"matmul_flops_per_second": 1e12, "data_sheet_flops_per_second": None}
TIMING = {"rounds": 2, "steps": 1}


@pytest.mark.slow
def test_without_any_of_them_the_step_is_the_same(monkeypatch):
    without_compiler(monkeypatch)
    task = small_task()
    expected = fast(task).build(1).loss_and_gradient_norm()
    rows = ablation_rows(task)
    rows.pop("large_step")  # it has other rows
    for name, row in rows.items():
        for parts in (1, 2):
            found = row.contestant.build(parts).loss_and_gradient_norm()
            assert found == pytest.approx(expected, rel=1e-4), name


def test_each_lacks_what_it_says(monkeypatch):
    without_compiler(monkeypatch)
    built = []
    monkeypatch.setattr(
        pretraining_ablation,
        "ours",
        lambda name, task, batches, **values: built.append((name, task, batches, values)),
    )
    task = small_task(rows=4)
    rows = ablation_rows(task)
    assert len(built) == len(rows) - 1  # a small step is the fast arm's own
    for name, of, batches, values in built:
        usual = {"mode": "default"} if name != "not compiled" else {}
        changed = {key for key in values if usual.get(key) != values[key]}
        assert (batches is not packed_bins) + (of is not task) + len(changed) == (
            {"not compiled": 0, "float32": 2}.get(name, 1)
        ), name
    everywhere = next(batches for name, _, batches, _ in built if name == "all tokens")
    batch = everywhere(task.rows, 1)[0]
    assert len(batch.masked_positions) == batch.num_slots
    assert rows["bfloat16"].task.autocast_dtype is None


def test_three_projections_are_the_fused_one():
    task = small_task(rows=2)
    model = our_model(task.config, task.device)
    fused = model.encoder.layers[0].query_key_value
    states = torch.randn(5, task.config.hidden_size)
    expected = fused(states)
    split_projections(model)
    assert all(
        isinstance(layer.query_key_value, ThreeProjections) for layer in model.encoder.layers
    )
    torch.testing.assert_close(model.encoder.layers[0].query_key_value(states), expected)


def test_rows_are_chosen_by_name():
    task = small_task(rows=2)
    assert list(chosen_rows(task, [])) == list(ablation_rows(task))
    assert list(chosen_rows(task, ["packing", "compile"])) == ["compile", "packing"]
    with pytest.raises(UserError, match="--ablation paking .*did you mean packing"):
        chosen_rows(task, ["paking"])


def run(task, rows, so_far):
    so_far.keep(peaks=PEAKS)
    ablate(task, rows, so_far, flops_of=lambda rows: rows.num_tokens, timing=TIMING, warmup=1)
    return so_far.values


@pytest.mark.slow
def test_every_row_is_timed_beside_the_fast_arm(monkeypatch):
    without_compiler(monkeypatch)
    monkeypatch.setattr(pretraining_ablation, "SMALL_STEP_TOKENS", 64)
    task = small_task()
    rows = chosen_rows(task, ["fused_adamw", "large_step"])
    found = run(task, rows, ResultsSoFar(None, 1e9))
    assert list(found["ablation"]) == ["fused_adamw", "large_step"]
    assert rows["large_step"].task.rows.num_tokens < task.rows.num_tokens
    for row in found["ablation"].values():
        rate = found["arms"]["ours, fast"]["tokens_per_second"] / row["tokens_per_second"]
        assert row["ratio"] == pytest.approx(rate, rel=1) and row["without"]
        assert len(row["step_seconds_of_rounds"]) == 2
    assert "left_out" not in found


def test_rows_without_time_are_named(monkeypatch):
    without_compiler(monkeypatch)
    times = iter(range(0, 10**6, 10))
    so_far = ResultsSoFar(None, 95, clock=lambda: next(times))
    task = small_task(rows=4)
    found = run(task, chosen_rows(task, ["fused_adamw", "packing", "compile"]), so_far)
    assert list(found["ablation"]) == ["compile"]
    assert found["left_out"] == ["packing", "fused_adamw"]


def test_a_row_that_computes_something_else_is_no_benchmark(monkeypatch):
    without_compiler(monkeypatch)
    task = small_task(rows=4)
    rows = chosen_rows(task, ["compile"])
    other = small_task(rows=4, natural=False)
    wrong = ablation_rows(other)["compile"].contestant
    rows["compile"] = pretraining_ablation.Row("compilation", wrong, task)
    found = run(task, rows, ResultsSoFar(None, 1e9))
    assert "for ours, fast" in found["failed"]["not compiled"]
    assert "ablation" not in found

import pytest
import torch
from small_pretraining import small_task, without_compiler

from benchmarks.pretraining import ablation as pretraining_ablation
from benchmarks.pretraining.ablation import (
    ThreeProjections,
    ablate,
    ablation_rows,
    chosen_rows,
    split_projections,
)
from benchmarks.pretraining.arms import fast, our_model
from benchmarks.pretraining.rows import packed_bins
from benchmarks.results_so_far import ResultsSoFar
from bert_core.errors import UserError

PEAKS = {"matmul_flops_per_second": 1e12, "data_sheet_flops_per_second": None}
TIMING = {"rounds": 2, "steps": 1}


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

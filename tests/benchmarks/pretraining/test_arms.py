from dataclasses import replace

import pytest
import torch
from small_pretraining import small_task, without_compiler

from benchmarks.pretraining import arms as pretraining_arms
from benchmarks.pretraining.arms import contestants, our_loss, our_model, ours
from benchmarks.pretraining.rows import packed_bins, padded_batches

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
    assert [each.name for each in contestants(on_cuda)] == CUDA_ARMS[:4]
    monkeypatch.setattr(pretraining_arms, "find_spec", lambda _: None)
    assert [each.name for each in contestants(on_cuda)] == CUDA_ARMS[:2]
    assert [each.name for each in contestants(task)] == ["ours"]


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

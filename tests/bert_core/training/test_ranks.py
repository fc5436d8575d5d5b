"""Real gloo ranks: one rank's gradient from unequal shares, a common stop, BERT itself."""

import json

import torch
from tiny_training import double_state, double_steps, gradients_of, run_ranks, tiny_train
from training_processes import (
    INFINITE,
    say_what_rank_zero_says,
    stop_on_rank_one,
    train_bert_twice,
    train_compiled,
    train_in_two_parts,
    train_share,
    train_with_pauses,
)

from bert_core.training.checkpoint import load_checkpoint
from bert_core.training.ranks import number_of_rank_zero


def test_three_ranks_with_unequal_shares_give_one_ranks_gradient(tmp_path):
    run_ranks(train_share, 3, tmp_path)
    alone = double_state()
    steps = (divided[0] for divided in double_steps([[16]]))
    options = {"max_gradient_norm": INFINITE, "total_steps": 3}
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(3)]
    for number, result in enumerate(tiny_train(alone, steps=steps, **options)):
        expected = gradients_of(alone)
        for rank in ranks:
            gradients, sums, norm, num_tokens = rank[number]
            for name, gradient in expected.items():
                assert (gradients[name] - gradient).norm() <= 1e-9 * gradient.norm(), name
            torch.testing.assert_close(sums, result.sums, rtol=1e-6, atol=0)
            torch.testing.assert_close(norm, result.gradient_norm, rtol=1e-9, atol=0)
            assert num_tokens == int(result.num_real_tokens) == 16
    # What three ranks wrote goes on in one process.
    loaded = double_state()
    info = load_checkpoint(tmp_path / "checkpoints" / "step-00000003", loaded)
    assert (info.world_size, loaded.step, loaded.num_tokens_seen) == (3, 3, 48)
    for first, second in zip(loaded.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)


def test_a_compiled_loss_gives_one_ranks_gradient(tmp_path):
    run_ranks(train_compiled, 2, tmp_path)
    alone = double_state()
    steps = (divided[0] for divided in double_steps([[16]]))
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    options = {"max_gradient_norm": INFINITE, "total_steps": 3}
    for number, _ in enumerate(tiny_train(alone, steps=steps, **options)):
        for name, gradient in gradients_of(alone).items():
            for rank in ranks:
                assert (rank[number][name] - gradient).norm() <= 1e-9 * gradient.norm(), name


def test_pauses_for_evaluation_and_a_fresh_start_change_no_bit(tmp_path):
    run_ranks(train_with_pauses, 2, tmp_path)


def test_three_ranks_resume_to_the_bit(tmp_path):
    """Of three addends the order counts, and it is that of the buckets."""
    run_ranks(train_in_two_parts, 3, tmp_path)


def test_all_ranks_take_rank_zeros_number(tmp_path):
    run_ranks(say_what_rank_zero_says, 2, tmp_path)
    assert [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)] == ["7", "7"]
    assert number_of_rank_zero(3, torch.device("cpu")) == 3  # alone, without a process group


def test_any_ranks_wish_stops_all_at_the_same_step(tmp_path):
    run_ranks(stop_on_rank_one, 2, tmp_path)
    assert [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)] == ["2 True"] * 2


def test_bert_trains_on_two_ranks_bit_for_bit_twice(tmp_path):
    run_ranks(train_bert_twice, 2, tmp_path)
    seen = [json.loads((tmp_path / f"losses{rank}.json").read_text()) for rank in range(2)]
    (first, *others) = [losses for of_rank in seen for losses in of_rank]
    assert others == [first] * 3

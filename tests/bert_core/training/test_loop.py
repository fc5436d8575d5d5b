"""The training loop: global batches, stopping, late numbers, and several real gloo ranks."""

import json
import pickle
from itertools import islice

import pytest
import torch
from tiny_training import (
    CPU,
    TinyStep,
    double_state,
    double_steps,
    gradients_of,
    run_ranks,
    tiny_batch,
    tiny_loss,
    tiny_state,
    tiny_steps,
    tiny_train,
)
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

from bert_core.errors import UserError
from bert_core.training.checkpoint import load_checkpoint
from bert_core.training.loop import NonFiniteLossError, Readings, compiled
from bert_core.training.ranks import number_of_rank_zero


def _weights(state):
    return [parameter.detach().clone() for parameter in state.model.parameters()]


def test_counts_rates_and_sums():
    state = tiny_state()
    results = list(tiny_train(state))
    assert [result.step for result in results] == list(range(1, 11))
    assert results[2].learning_rate == 0.02 > results[-1].learning_rate > 0
    assert state.num_rows_seen == state.num_tokens_seen == 80
    assert (state.step, results[0].sums.shape, results[0].sums.dtype) == (10, (3,), torch.float64)
    assert (int(results[0].num_real_tokens), int(results[0].num_slots)) == (8, 12)
    assert not any(result.stopped for result in results)


def test_random_numbers_drawn_and_evaluation_between_steps_change_nothing():
    plain, disturbed = tiny_state(), tiny_state()
    list(tiny_train(plain))
    for _ in tiny_train(disturbed):
        torch.rand(13)
        disturbed.model.eval()
    for first, second in zip(_weights(plain), _weights(disturbed), strict=True):
        assert torch.equal(first, second)


def test_dropout_differs_between_steps_seeds_and_micro_batches():
    def losses(seed, sizes):
        same = tiny_batch(0, 0, 4)
        step = TinyStep([same] * sizes, 4 * sizes, 4 * sizes)
        state = tiny_state()
        return [
            float(result.sums[0])
            for result in tiny_train(
                state, steps=iter([step] * 3), total_steps=3, schedule=lambda _: 0.0, seed=seed
            )
        ]

    first = losses(1, 1)
    assert len(set(first)) == 3  # learning rate 0: only dropout differs
    assert first == losses(1, 1) != losses(2, 1)
    assert losses(1, 2)[0] != 2 * first[0]


def test_micro_batches_add_up_to_the_whole():
    whole, divided = double_state(), double_state()
    options = {"max_gradient_norm": INFINITE, "total_steps": 1}
    list(tiny_train(whole, steps=(d[0] for d in double_steps([[16]])), **options))
    list(tiny_train(divided, steps=(d[0] for d in double_steps([[5, 3, 7, 1]])), **options))
    for name, gradient in gradients_of(whole).items():
        assert (gradient - gradients_of(divided)[name]).norm() <= 1e-12 * gradient.norm(), name


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_stops_before_a_weight_is_touched(bad):
    def steps():
        yield from islice(tiny_steps(0), 2)
        poisoned = tiny_batch(2, 0, 5)
        poisoned.features[0, 0] = bad
        yield TinyStep([tiny_batch(2, 1, 3), poisoned], 8, 8)

    state = tiny_state()
    results = tiny_train(state, steps=steps())
    next(results)
    next(results)
    before = _weights(state)
    with pytest.raises(NonFiniteLossError, match="step 3") as caught:
        next(results)
    assert state.step == 2
    for first, second in zip(before, _weights(state), strict=True):
        assert torch.equal(first, second)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, UserError) and (error.step, str(error)) == (3, str(caught.value))


def test_missing_data_is_an_error():
    with pytest.raises(RuntimeError, match="ended after step 2"):
        list(tiny_train(tiny_state(), steps=islice(tiny_steps(0), 2)))
    with pytest.raises(ValueError, match="no micro-batch in step 1"):
        list(tiny_train(tiny_state(), steps=iter([TinyStep([], 1, 1)])))


def test_autocast_reaches_the_forward_pass():
    kinds = []

    def loss(model, batch, **counts):
        kinds.append((batch.features @ batch.features.T).dtype)
        return tiny_loss(model, batch, **counts)

    state = tiny_state()
    list(tiny_train(state, total_steps=1, compute_loss=loss, autocast_dtype=torch.bfloat16))
    assert set(kinds) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 and p.device == CPU for p in state.model.parameters())


def test_a_compiled_loss_is_compiled_twice_at_most_whatever_the_counts():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    same = tiny_batch(0, 0, 4)
    steps = (TinyStep([same], 40 + count, 4 + count) for count in range(12))
    compiled = torch.compile(tiny_loss, fullgraph=True, backend=backend)
    list(tiny_train(tiny_state(), steps=steps, compute_loss=compiled))
    assert 1 <= len(graphs) <= 2  # static, then with the counts as symbols


def test_late_readings_come_one_step_late_and_at_once_at_the_end():
    fine, stop, bad = torch.zeros(9), torch.zeros(9), torch.zeros(9)
    stop[8] = 1
    bad[0] = float("nan")
    norm = torch.tensor(1.0)
    late = Readings(late=True)
    assert not late.take(1, stop, norm, last=False)
    assert late.take(2, fine, norm, last=False)
    late = Readings(late=True)
    assert not late.take(1, bad, norm, last=False)
    with pytest.raises(NonFiniteLossError, match="step 1:"):
        late.take(2, fine, norm, last=False)
    with pytest.raises(NonFiniteLossError, match="step 9:"):
        Readings(late=True).take(9, bad, norm, last=True)
    assert Readings(late=False).take(1, stop, norm, last=False)


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


@pytest.mark.slow
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


def test_as_many_shapes_are_compiled_as_a_run_has(monkeypatch):
    from torch._dynamo import config

    monkeypatch.setattr(config, "recompile_limit", 2)
    torch.compiler.reset()
    count, model = 12, tiny_state().model.eval()
    loss = compiled(tiny_loss, num_shapes=count, backend="eager")
    for rows in range(2, 2 + count):
        counts = {"num_predictions": rows, "num_rows": rows}
        batch = tiny_batch(0, 0, rows)
        torch.testing.assert_close(
            loss(model, batch, **counts)[0], tiny_loss(model, batch, **counts)[0]
        )


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

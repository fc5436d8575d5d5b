"""The loop: one rank's gradient on any number of ranks, seeded dropout, stopping, bad numbers."""

import pickle
from itertools import islice

import pytest
import torch
from tiny_training import (
    CPU,
    IGNORE,
    TinyBatch,
    TinyStep,
    run_ranks,
    tiny_batch,
    tiny_loss,
    tiny_state,
    tiny_steps,
    tiny_train,
)

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model.layout import Packed
from bert_core.tasks.pretraining import PretrainingBatch, compute_loss
from bert_core.training.checkpoint import load_checkpoint, save_checkpoint
from bert_core.training.loop import NonFiniteLossError, TrainingState
from bert_core.training.optimization import OptimizerSettings, create_optimizer
from bert_core.training.readings import Readings

INFINITE = float("inf")
SHARES = [[5], [3, 4], [2, 1, 1]]  # rows of each rank's micro-batches


def _weights(state):
    return [parameter.detach().clone() for parameter in state.model.parameters()]


def _gradients(state):
    return {name: p.grad.clone() for name, p in state.model.named_parameters()}


def test_counts_rates_and_sums():
    state = tiny_state()
    results = list(tiny_train(state))
    assert [result.step for result in results] == list(range(1, 11))
    assert results[2].learning_rate == 0.02 > results[-1].learning_rate > 0
    assert state.num_rows_seen == state.num_tokens_seen == 80
    assert (state.step, results[0].sums.shape, results[0].sums.dtype) == (10, (6,), torch.float64)
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


def _double_steps(shares):
    """Global batches of 16 rows divided into `shares`; the last row carries no label."""
    for step in range(3):
        whole = tiny_batch(step, 0, 16, dtype=torch.float64)
        whole.labels[-1] = IGNORE
        parts = zip(
            whole.features.split([n for share in shares for n in share]),
            whole.labels.split([n for share in shares for n in share]),
            strict=True,
        )
        batches = [TinyBatch(rows, labels, len(rows), len(rows)) for rows, labels in parts]
        divided = []
        for share in shares:
            divided.append(TinyStep(batches[: len(share)], 15, 16))
            batches = batches[len(share) :]
        yield divided


def _double_state():
    state = tiny_state(dropout=0.0)
    state.model.double()
    return state


def _train_share(rank, folder):
    state = _double_state()
    steps = (divided[rank] for divided in _double_steps(SHARES))
    options = {"max_gradient_norm": INFINITE, "total_steps": 3}
    seen = [
        (_gradients(state), result.sums, result.gradient_norm, int(result.num_real_tokens))
        for result in tiny_train(state, steps=steps, **options)
    ]
    torch.save(seen, folder / f"rank{rank}.pt")
    if rank == 0:
        save_checkpoint(folder / "checkpoints", state, extra={}, files={}, keep=1)


def test_three_ranks_with_unequal_shares_give_one_ranks_gradient(tmp_path):
    run_ranks(_train_share, 3, tmp_path)
    alone = _double_state()
    steps = (divided[0] for divided in _double_steps([[16]]))
    options = {"max_gradient_norm": INFINITE, "total_steps": 3}
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(3)]
    for number, result in enumerate(tiny_train(alone, steps=steps, **options)):
        expected = _gradients(alone)
        for rank in ranks:
            gradients, sums, norm, num_tokens = rank[number]
            for name, gradient in expected.items():
                assert (gradients[name] - gradient).norm() <= 1e-9 * gradient.norm(), name
            torch.testing.assert_close(sums, result.sums, rtol=1e-6, atol=0)
            torch.testing.assert_close(norm, result.gradient_norm, rtol=1e-9, atol=0)
            assert num_tokens == int(result.num_real_tokens) == 16
    # What three ranks wrote goes on in one process.
    loaded = _double_state()
    info = load_checkpoint(tmp_path / "checkpoints" / "step-00000003", loaded)
    assert (info.world_size, loaded.step, loaded.num_tokens_seen) == (3, 3, 48)
    for first, second in zip(_weights(loaded), _weights(alone), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)


def _stop_on_rank_one(rank, folder):
    state = tiny_state()
    asked = iter([False, rank == 1, False])
    results = list(tiny_train(state, should_stop=lambda: next(asked)))
    (folder / f"rank{rank}.txt").write_text(f"{state.step} {results[-1].stopped}")


def test_any_ranks_wish_stops_all_at_the_same_step(tmp_path):
    run_ranks(_stop_on_rank_one, 2, tmp_path)
    assert [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)] == ["2 True"] * 2


def _pretraining_batch(lengths, labels):
    num_tokens = sum(lengths)
    ids = (torch.arange(num_tokens) * 7) % 59 + 5
    places = torch.arange(0, num_tokens, 4)
    return PretrainingBatch(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        layout=Packed.from_lengths(lengths),
        masked_positions=places,
        masked_ids=ids[places],
        next_sentence=torch.tensor(labels),
        num_real_tokens=num_tokens,
        num_slots=num_tokens,
    )


def _bert_state():
    torch.manual_seed(1)
    config = ModelConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    model = Bert.for_pretraining(config)
    settings = OptimizerSettings(peak_learning_rate=1e-2)
    return TrainingState(model, create_optimizer(model, settings))


def _train_bert(rank, folder):
    # Rank 1 has no row with a next-sentence label, and still takes part in every exchange.
    batch = _pretraining_batch([8, 12], [0, 1] if rank == 0 else [IGNORE, IGNORE])
    step = TinyStep([batch, batch], 20, 4)
    options = {"steps": iter([step] * 20), "total_steps": 20, "compute_loss": compute_loss}
    losses = [
        float(r.sums[0]) for r in tiny_train(_bert_state(), schedule=lambda _: 1e-2, **options)
    ]
    (folder / f"losses{rank}.txt").write_text(repr(losses))
    assert losses[-1] < 0.7 * losses[0]


def test_bert_trains_on_two_ranks_bit_for_bit_twice(tmp_path):
    seen = []
    for attempt in ("a", "b"):
        (tmp_path / attempt).mkdir()
        run_ranks(_train_bert, 2, tmp_path / attempt)
        seen += [(tmp_path / attempt / f"losses{rank}.txt").read_text() for rank in range(2)]
    assert len(set(seen)) == 1


def test_micro_batches_add_up_to_the_whole():
    whole, divided = _double_state(), _double_state()
    options = {"max_gradient_norm": INFINITE, "total_steps": 1}
    list(tiny_train(whole, steps=(d[0] for d in _double_steps([[16]])), **options))
    list(tiny_train(divided, steps=(d[0] for d in _double_steps([[5, 3, 7, 1]])), **options))
    for name, gradient in _gradients(whole).items():
        assert (gradient - _gradients(divided)[name]).norm() <= 1e-12 * gradient.norm(), name


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

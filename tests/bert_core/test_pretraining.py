"""The loss of pre-training and its gradients, and the evaluation against sums by hand."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from synthetic_shards import vocabulary
from tiny_training import IGNORE, run_ranks
from training_processes import COUNTS, evaluate, evaluate_share, held_out, undecided_model

from bert_core.config import IGNORE_INDEX, SIZES, ModelConfig
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model.layout import Packed
from bert_core.pretraining import SUM_NAMES, compute_loss
from bert_core.settings import BatchSettings, OptimizerSettings, RowSettings
from bert_core.text.batches import BatchSource
from bert_core.text.shards import Shard, TokenShards
from bert_core.training.loop import TrainingState, train
from bert_core.training.optimization import create_optimizer, linear_schedule


def test_the_first_loss_is_that_of_a_guess(some_rows):
    torch.manual_seed(0)
    model = Bert.for_pretraining(SIZES["tiny"])
    rows = some_rows([64] * 8, vocab_size=30_522)
    loss, _ = rows.loss(model, packed=True)
    assert loss.item() == pytest.approx(math.log(30_522) + math.log(2), rel=0.05)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"position_embedding": "sinusoidal"}, {"is_decoder": True}], ids=str
)
def test_every_parameter_gets_a_gradient(small_config, some_rows, packed, changes):
    model = Bert.for_pretraining(small_config.model_copy(update=changes))
    rows = some_rows([32, 20], seq=32)
    rows.loss(model, packed=packed)[0].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("is_decoder", [False, True])
def test_neither_packing_nor_unused_places_change_loss_or_gradient(
    small_config, some_rows, is_decoder
):
    rows = some_rows([5, 12, 12, 7], seq=20)
    torch.manual_seed(0)
    config = small_config.model_copy(update={"is_decoder": is_decoder})
    model = Bert.for_pretraining(config).double()
    results = []
    for packed, unused_places in ((True, 0), (True, 9), (False, 0), (False, 4)):
        model.zero_grad()
        loss, sums = rows.loss(model, packed=packed, unused_places=unused_places)
        loss.backward()
        results.append([loss.detach(), sums, *(parameter.grad for parameter in model.parameters())])
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


def test_the_loss_is_made_of_the_sums(small_model, some_rows):
    rows = some_rows([9, 17, 30, 4])
    loss, sums = rows.loss(small_model, packed=True)
    named = dict(zip(SUM_NAMES, sums.tolist(), strict=True))
    assert sums.dtype == torch.float32 and not sums.requires_grad
    assert named["num_predictions"] == (rows.labels != IGNORE_INDEX).sum()
    assert named["num_rows"] == 3
    expected = (
        named["masked_token_loss"] / named["num_predictions"]
        + named["next_sentence_loss"] / named["num_rows"]
    )
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_the_sums_count_what_is_right(small_model, some_rows):
    rows = some_rows([9, 17, 30, 4])
    batch = rows.batch(packed=True)
    with torch.no_grad():
        states = small_model.encoder(*batch.inputs)
        logits = small_model.heads["masked_token"](
            states[batch.masked_positions], small_model.encoder.word_embeddings
        )
    guesses = logits.argmax(-1)
    rows.labels[rows.labels != IGNORE_INDEX] = torch.where(
        torch.arange(len(guesses)) < 5, guesses, (guesses + 1) % 1000
    )
    _, sums = rows.loss(small_model, packed=True)
    assert sums[SUM_NAMES.index("masked_token_correct")] == 5


def test_parts_of_a_batch_add_up_to_the_whole(small_model, some_rows):
    model = small_model.double()
    rows = some_rows([8, 30, 12])
    counts = {"num_predictions": 10, "num_rows": 2}
    whole, _ = rows.loss(model, packed=True)
    parts = []
    for row in range(3):
        part = some_rows([rows.lengths[row]])
        n = rows.lengths[row]
        part.input_ids, part.token_type_ids, part.labels = (
            each[row : row + 1, :n] for each in (rows.input_ids, rows.token_type_ids, rows.labels)
        )
        part.next_sentence = rows.next_sentence[row : row + 1]
        parts.append(compute_loss(model, part.batch(packed=True), **counts)[0])
    assert int((rows.labels != IGNORE_INDEX).sum()) == 10
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-12)


def topical_shards():
    """A hundred documents of words that mean one of eight topics, each of three words by chance.

    Whoever knows the topic from the other words has a loss of ln 3, whoever does not one of ln 24.
    """
    random = np.random.default_rng(0)
    sentences = np.concatenate([[0], np.cumsum(random.integers(4, 12, 1200))])
    documents = np.arange(0, 1201, 12)
    topics = np.repeat(random.integers(0, 8, 100), np.diff(sentences[documents]))
    tokens = (5 + 3 * topics + random.integers(0, 3, len(topics))).astype(np.uint16)
    shards = [Shard("topics", tokens, sentences, documents)]
    return TokenShards(Path("topics"), "train", shards, 29, "none", "topics")


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("objective", "packed"), [("mlm_nsp", True), ("mlm", False), ("left_to_right", False)]
)
def test_each_objective_learns_from_context(objective, packed):
    source = BatchSource(
        topical_shards(),
        vocabulary(29),
        rows=RowSettings(objective=objective),
        batch=BatchSettings(global_batch_size=32, micro_batch_size=32, packed=packed),
        sequence_length=32,
        seed=0,
        phase=0,
    )
    config = ModelConfig(
        vocab_size=29,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0,
        is_decoder=objective == "left_to_right",
    )
    torch.manual_seed(0)
    model = Bert.for_pretraining(config, next_sentence=objective == "mlm_nsp")
    settings = OptimizerSettings(peak_learning_rate=1e-2)
    results = train(
        TrainingState(model, create_optimizer(model, settings)),
        source.steps(0),
        compute_loss,
        total_steps=70,
        schedule=lambda step: 1e-2 * linear_schedule(step, total_steps=70, warmup_steps=10),
        max_gradient_norm=1.0,
        device=torch.device("cpu"),
        autocast_dtype=None,
        seed=0,
    )
    sums = np.array([result.sums.tolist() for result in results])
    losses = sums[:, 0] / sums[:, 2]
    assert losses[0] == pytest.approx(math.log(29), rel=0.05)
    assert losses[-10:].mean() < 2.2 < 0.7 * math.log(24)
    assert (sums[:, 5] > 0).all() == (objective == "mlm_nsp")


def test_without_next_sentence_there_is_one_loss(small_config, some_rows):
    model = Bert.for_pretraining(small_config, next_sentence=False)
    rows = some_rows([9, 17])
    loss, sums = rows.loss(model, packed=True)
    assert loss.item() == pytest.approx((sums[0] / sums[2]).item(), rel=1e-6)
    assert sums[3:].tolist() == [0, 0, 0]


def test_a_batch_without_labels_costs_nothing(small_model, some_rows):
    rows = some_rows([3])
    rows.labels[:] = IGNORE_INDEX
    loss, sums = compute_loss(small_model, rows.batch(packed=True), num_predictions=40, num_rows=4)
    loss.backward()
    assert loss.item() == 0 and sums.tolist() == [0] * 6
    assert all(parameter.grad.isfinite().all() for parameter in small_model.parameters())


def test_a_batch_moves_whole(some_rows):
    moved = some_rows([9, 17]).batch(packed=True).to("meta", non_blocking=True)
    assert isinstance(moved.layout, Packed) and moved.layout.cu_seqlens.device.type == "meta"
    for name in ("input_ids", "token_type_ids", "position_ids", "masked_ids", "next_sentence"):
        assert getattr(moved, name).device.type == "meta"
    assert moved.num_real_tokens == 26


def test_evaluation_means_are_over_all_predictions_and_rows():
    model, batches = undecided_model(), [held_out(number) for number in range(4)]
    evaluation = evaluate(model, batches)
    ids = torch.cat([batch.masked_ids for batch in batches])
    kept = ids != IGNORE
    with torch.no_grad():
        logits = model.eval()(torch.cat([batch.features for batch in batches]))
    expected = float(F.cross_entropy(logits[kept], ids[kept]))
    assert evaluation.masked_token_loss == pytest.approx(expected, rel=1e-6)
    assert evaluation.perplexity == pytest.approx(math.exp(expected), rel=1e-6)
    right = float((logits.argmax(-1) == ids)[kept].double().mean())
    assert evaluation.masked_token_accuracy == pytest.approx(right)
    assert evaluation.next_sentence_accuracy == pytest.approx(2 / 3)
    assert evaluation.next_sentence_loss == pytest.approx(
        -(2 * math.log(0.75) + math.log(0.25)) / 3, rel=1e-6
    )
    assert (evaluation.num_predictions, evaluation.num_rows) == (20, 12)
    chances = (COUNTS[ids[kept].numpy()] + 1) / (COUNTS.sum() + 16)
    assert evaluation.unigram_loss == pytest.approx(-np.log(chances).mean())


def test_evaluation_has_no_dropout_and_the_mode_is_given_back_even_after_an_error():
    model = undecided_model()
    assert evaluate(model, [held_out(1)]) == evaluate(model, [held_out(1)])
    assert model.training and model.dropout.training

    def broken(model, batch, **counts):
        raise KeyError("broken")

    with pytest.raises(KeyError):
        evaluate(model, [held_out(1)], broken)
    assert model.training
    evaluate(model.eval(), [held_out(1)])
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_next_sentence_labels_there_is_no_next_sentence_figure():
    evaluation = evaluate(undecided_model(), [held_out(1, (IGNORE, IGNORE))])
    assert evaluation.next_sentence_accuracy is None
    assert evaluation.next_sentence_loss is None
    assert evaluation.num_rows == 0


def test_nothing_to_predict_is_said():
    empty = replace(held_out(0), masked_ids=torch.full((6,), IGNORE))
    for batches in ([], [empty]):
        with pytest.raises(UserError, match="nothing to evaluate"):
            evaluate(undecided_model(), batches)


def test_ranks_share_the_held_out_batches_and_all_get_the_whole(tmp_path):
    run_ranks(evaluate_share, 2, tmp_path)
    alone = asdict(evaluate(undecided_model(), [held_out(number) for number in range(5)]))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(alone)

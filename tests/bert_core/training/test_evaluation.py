"""Evaluation against sums by hand, the unigram baseline by numpy, and shares of two ranks."""

import json
import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_training import CPU, IGNORE, TinyModel, run_ranks
from torch import Tensor

from bert_core.errors import UserError
from bert_core.training.evaluation import evaluate_pretraining

COUNTS = np.array([0, 5, 1, 100, 7, 0, 0, 3, 2, 2, 9, 1, 1, 1, 40, 8])


@dataclass(frozen=True)
class HeldOut:
    features: Tensor  # [predictions, 8]
    masked_ids: Tensor  # [predictions]
    next_sentence: Tensor  # [rows]

    def to(self, device, non_blocking=False):  # noqa: ARG002 - the shape of a real batch
        return self


def _loss(model, batch, *, num_predictions, num_rows):
    """A loss whose next-sentence part answers IsNext with certainty 0.75."""
    logits = model(batch.features)
    used, labelled = batch.masked_ids != IGNORE, batch.next_sentence != IGNORE
    loss = F.cross_entropy(logits, batch.masked_ids, ignore_index=IGNORE, reduction="sum")
    hits = ((logits.argmax(-1) == batch.masked_ids) & used).sum()
    chances = torch.where(batch.next_sentence == 0, 0.75, 0.25)[labelled]
    row_hits = (batch.next_sentence == 0).sum()
    parts = [loss, hits, used.sum(), -chances.log().sum(), row_hits, labelled.sum()]
    return loss / num_predictions, torch.stack([torch.as_tensor(p).float() for p in parts])


def _held_out(number, next_sentence=(0, 1, 0)):
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, 16, (6,), generator=generator)
    ids[number % 3] = IGNORE
    features = torch.randn(6, 8, generator=generator)
    return HeldOut(features, ids, torch.tensor(next_sentence))


def _model():
    torch.manual_seed(0)
    return TinyModel(dropout=0.5)


def _evaluate(model, batches, loss=_loss):
    return evaluate_pretraining(model, batches, loss, device=CPU, token_counts=COUNTS)


def test_means_are_over_all_predictions_and_rows():
    model, batches = _model(), [_held_out(number) for number in range(4)]
    evaluation = _evaluate(model, batches)
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


def test_no_dropout_and_the_mode_is_given_back_even_after_an_error():
    model = _model()
    assert _evaluate(model, [_held_out(1)]) == _evaluate(model, [_held_out(1)])
    assert model.training and model.dropout.training

    def broken(model, batch, **counts):
        raise KeyError("broken")

    with pytest.raises(KeyError):
        _evaluate(model, [_held_out(1)], broken)
    assert model.training
    _evaluate(model.eval(), [_held_out(1)])
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_next_sentence_labels_there_is_no_next_sentence_figure():
    evaluation = _evaluate(_model(), [_held_out(1, (IGNORE, IGNORE))])
    assert evaluation.next_sentence_accuracy is None
    assert evaluation.next_sentence_loss is None
    assert evaluation.num_rows == 0


def test_nothing_to_predict_is_said():
    empty = replace(_held_out(0), masked_ids=torch.full((6,), IGNORE))
    for batches in ([], [empty]):
        with pytest.raises(UserError, match="nothing to evaluate"):
            _evaluate(_model(), batches)


def _share(rank, folder):
    batches = [[_held_out(number) for number in range(5)], []][rank]
    (folder / f"{rank}.json").write_text(json.dumps(asdict(_evaluate(_model(), batches))))


def test_ranks_share_the_batches_and_all_get_the_whole(tmp_path):
    run_ranks(_share, 2, tmp_path)
    alone = asdict(_evaluate(_model(), [_held_out(number) for number in range(5)]))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(alone)

"""Evaluation against sums by hand, the unigram baseline by numpy, and shares of two ranks."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_training import IGNORE, run_ranks
from training_processes import COUNTS, evaluate, evaluate_share, held_out, undecided_model

from bert_core.errors import UserError


def test_means_are_over_all_predictions_and_rows():
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


def test_no_dropout_and_the_mode_is_given_back_even_after_an_error():
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


def test_ranks_share_the_batches_and_all_get_the_whole(tmp_path):
    run_ranks(evaluate_share, 2, tmp_path)
    alone = asdict(evaluate(undecided_model(), [held_out(number) for number in range(5)]))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(alone)

import pytest
import torch

from bert_core.settings import RowSettings
from bert_core.training.loop import StepResult
from workflows.pretraining.metrics import described_rows, is_as_in_the_paper, step_metrics


def result(*sums):
    each = torch.tensor(sums, dtype=torch.float64)
    loss, norm, count = torch.tensor(4.75), torch.tensor(0.5), torch.tensor(90)
    return StepResult(3, loss, each, norm, 1e-3, count, count, 900, stopped=False)


def test_metrics_are_means_over_the_global_batch():
    metrics = step_metrics(result(40.0, 5.0, 10.0, 6.0, 3.0, 8.0), "mlm_nsp")
    assert metrics == {
        "train/loss": 4.75,
        "train/masked_token_loss": 4.0,
        "train/masked_token_accuracy": 0.5,
        "train/learning_rate": 1e-3,
        "train/gradient_norm": 0.5,
        "train/next_sentence_loss": 0.75,
        "train/next_sentence_accuracy": 3 / 8,
    }
    alone = step_metrics(result(40.0, 5.0, 10.0, 0.0, 0.0, 0.0), "mlm")
    assert "train/next_sentence_loss" not in alone and "train/masked_token_loss" in alone


def test_left_to_right_they_have_names_of_their_own():
    metrics = step_metrics(result(40.0, 5.0, 10.0, 0.0, 0.0, 0.0), "left_to_right")
    assert (metrics["train/next_token_loss"], metrics["train/next_token_accuracy"]) == (4.0, 0.5)
    assert not [name for name in metrics if "masked" in name]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({}, "mlm_nsp"),
        ({"objective": "left_to_right"}, "left_to_right"),
        ({"objective": "mlm", "input_format": "full_sentences"}, "mlm, full_sentences"),
        ({"masked_share": 0.3}, "mlm_nsp, 0.3 of the tokens predicted"),
        (
            {"mask_token_share": 0.8, "random_token_share": 0},
            "mlm_nsp, of these 0.8 [MASK] / 0 random / 0.2 the same",
        ),
        ({"whole_word": True}, "mlm_nsp, whole words"),
    ],
)
def test_what_is_other_than_in_the_paper_is_said(rows, said):
    settings = RowSettings(**rows)
    assert described_rows(settings) == said
    assert is_as_in_the_paper(settings) == (not rows)

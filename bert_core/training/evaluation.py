"""A model and held-out micro-batches go in; a `PretrainingEvaluation` comes out.

Beside the model's loss stands the unigram baseline's, on exactly the same masked ids.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.pretraining import SUM_NAMES
from bert_core.training.loop import ComputeLoss, autocast
from bert_core.training.ranks import world_size


@dataclass(frozen=True)
class PretrainingEvaluation:
    """Means over all held-out predictions and rows; losses in nats, accuracies in 0..1.

    Predictions are of masked tokens, those of a decoder of next tokens. `next_sentence_loss` and
    `next_sentence_accuracy` are None when no row carries that label. `unigram_loss` is the loss of
    predicting every such token by its frequency in training (add-one smoothed): what a model must
    beat to have learned anything from context.
    """

    masked_token_loss: float
    perplexity: float
    masked_token_accuracy: float
    next_sentence_loss: float | None
    next_sentence_accuracy: float | None
    unigram_loss: float
    num_predictions: int
    num_rows: int


def evaluate_pretraining(
    model: nn.Module,
    batches: Iterable[Any],
    compute_loss: ComputeLoss,
    *,
    device: torch.device,
    token_counts: np.ndarray,
    autocast_dtype: torch.dtype | None = None,
) -> PretrainingEvaluation:
    """Evaluates the bare model without dropout and leaves its training mode as it was.

    `batches` are `PretrainingBatch`es; `token_counts` is [vocabulary], how often each token is
    predicted in training: the counts of the text and, of a decoder, of the [SEP]s between. With a
    process group every rank calls this with its own share, which may be empty, and gets the result
    of the whole. Raises `UserError` when there is nothing to predict.
    """
    surprise = torch.from_numpy(unigram_surprise(token_counts)).to(device)
    totals = torch.zeros(len(SUM_NAMES) + 1, dtype=torch.float64, device=device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(device, autocast_dtype):
            for batch in batches:
                batch = batch.to(device, non_blocking=True)
                _, sums = compute_loss(model, batch, num_predictions=1, num_rows=1)
                totals[:-1] += sums
                totals[-1] += _sum_of_surprise(surprise, batch.masked_ids)
    finally:
        model.train(was_training)
    if world_size() > 1:
        dist.all_reduce(totals)
    return _means(totals)


def unigram_surprise(token_counts: np.ndarray) -> np.ndarray:
    """Minus the log of each token's add-one smoothed frequency, [vocabulary] float64, in nats."""
    smoothed = token_counts.astype(np.float64) + 1.0
    return np.log(smoothed.sum()) - np.log(smoothed)


def _sum_of_surprise(surprise: Tensor, masked_ids: Tensor) -> Tensor:
    used = masked_ids != IGNORE_INDEX
    return (surprise[masked_ids.clamp(min=0)] * used).sum()  # no boolean index: it would wait


def _means(totals: Tensor) -> PretrainingEvaluation:
    masked_token_loss, masked_token_correct, num_predictions, *rest = totals.tolist()
    next_sentence_loss, next_sentence_correct, num_rows, unigram_loss = rest
    if not num_predictions:
        raise UserError(
            "nothing to evaluate", "the held-out batches", "prepare more held-out documents"
        )
    loss = masked_token_loss / num_predictions
    return PretrainingEvaluation(
        masked_token_loss=loss,
        perplexity=math.inf if loss > 700 else math.exp(loss),  # 700: the limit of a double
        masked_token_accuracy=masked_token_correct / num_predictions,
        next_sentence_loss=next_sentence_loss / num_rows if num_rows else None,
        next_sentence_accuracy=next_sentence_correct / num_rows if num_rows else None,
        unigram_loss=unigram_loss / num_predictions,
        num_predictions=int(num_predictions),
        num_rows=int(num_rows),
    )

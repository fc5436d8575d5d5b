"""Pre-training: the loss of its objective, the sums that are logged, and the evaluation.

Shapes: T tokens, N rows (sequences), P places for predictions, some of them unused.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.model.bert import Bert, MaskedTokenHead
from bert_core.model.encoder import without_dropout
from bert_core.settings import DistillationSettings
from bert_core.text.collation import PretrainingBatch
from bert_core.training.loop import ComputeLoss, autocast
from bert_core.training.ranks import world_size

SUM_NAMES = (
    "masked_token_loss",
    "masked_token_correct",
    "num_predictions",
    "next_sentence_loss",
    "next_sentence_correct",
    "num_rows",
)
"""What the sums of `compute_loss` are, in order; rows without a next-sentence label not counted.

Of a decoder the first three are of next tokens.
"""


@dataclass(frozen=True)
class TokenTeacher:
    """A frozen model whose predictions a student learns (Hinton et al. 2015, arXiv 1503.02531).

    It has the student's objective and tokenizer, and is in evaluation mode.
    """

    model: Bert
    settings: DistillationSettings

    def loss(
        self, model: Bert, states: Tensor, batch: PretrainingBatch, count: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """The student's loss over `count`, from its states [P, H], and its sums, float32 [4].

        Alpha times the soft cross entropy at a temperature, times its square, and the rest that of
        the right tokens. The sums are those of tokens as in SUM_NAMES, and the soft cross entropy.
        """
        used = batch.masked_ids != IGNORE_INDEX
        with torch.no_grad():
            theirs = self.model.encoder(*batch.inputs, batch.masked_positions)
            wanted = _token_logits(self.model, theirs)
        logits = _token_logits(model, states)
        total = F.cross_entropy(
            logits, batch.masked_ids, ignore_index=IGNORE_INDEX, reduction="sum"
        )
        size, temperature = min(logits.shape[1], wanted.shape[1]), self.settings.temperature
        soft = F.cross_entropy(
            logits[:, :size] / temperature,
            (wanted[:, :size] / temperature).softmax(1),
            reduction="none",
        )
        soft = (soft * used).sum() * temperature**2
        hits = (logits.detach().argmax(-1) == batch.masked_ids).sum()
        sums = torch.cat([_sums(total.detach(), hits, batch.masked_ids), soft.detach().reshape(1)])
        alpha = self.settings.alpha
        return (alpha * soft + (1 - alpha) * total) / count, sums


def _token_logits(model: Bert, states: Tensor) -> Tensor:
    """Float32 logits [P, V] over the vocabulary for the states [P, H] of places."""
    return _token_head(model)(states, model.encoder.word_embeddings).float()


def _token_head(model: Bert) -> MaskedTokenHead:
    head = model.heads["next_token" if model.config.is_decoder else "masked_token"]
    assert isinstance(head, MaskedTokenHead)
    return head


def compute_loss(
    model: Bert,
    batch: PretrainingBatch,
    *,
    num_predictions: int | Tensor,
    num_rows: int | Tensor,
    teacher: TokenTeacher | None = None,
) -> tuple[Tensor, Tensor]:
    """The micro-batch's share of the global batch's loss, and its sums for the log.

    The loss is the masked-token sum over `num_predictions`, of a decoder the next-token sum, plus
    the next-sentence sum over `num_rows`: both denominators count the global batch, so that the
    gradients of micro-batches and ranks add up to that of the whole (Devlin et al. 2018, appendix
    A.2). They are numbers, or 0-d tensors on the batch's device. The sums are detached float32
    [6], see SUM_NAMES, and with a `teacher`, for tokens alone, its soft cross entropy behind them.
    Nothing here waits for the device.
    """
    places, next_sentence = batch.masked_positions, "next_sentence" in model.heads
    if next_sentence:
        places = torch.cat([places, batch.layout.first_positions])
    states = model.encoder(
        batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout, places
    )
    masked_states, first_states = states.tensor_split([len(batch.masked_positions)])
    tokens = _masked_token_loss if teacher is None else teacher.loss
    loss, sums = tokens(model, masked_states, batch, _at_least_one(num_predictions))
    sums, soft = sums[:3], sums[3:]
    if not next_sentence:
        return loss, torch.cat([sums, sums.new_zeros(3), soft])
    num_rows = _at_least_one(num_rows)
    row_loss, row_sums = _next_sentence_loss(model, first_states, batch, num_rows)
    return loss + row_loss, torch.cat([sums, row_sums, soft])


def _at_least_one(count: int | Tensor) -> int | Tensor:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _masked_token_loss(
    model: Bert, masked_states: Tensor, batch: PretrainingBatch, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    words = model.encoder.word_embeddings
    loss, hits = _token_head(model).loss(masked_states, words, batch.masked_ids, count)
    return loss, _sums(loss.detach() * count, hits, batch.masked_ids)


def _next_sentence_loss(
    model: Bert, first_states: Tensor, batch: PretrainingBatch, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    pooled = model.heads["pooler"](first_states)
    logits, labels = model.heads["next_sentence"](pooled), batch.next_sentence  # [N, 2], [N]
    total = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    hits = (logits.detach().argmax(-1) == labels).sum()
    return total / count, _sums(total.detach(), hits, labels)


def _sums(loss: Tensor, hits: Tensor, labels: Tensor) -> Tensor:
    """Float32 [3]: the summed loss, how many are right, how many there are."""
    return torch.stack([loss.float(), hits.float(), (labels != IGNORE_INDEX).sum().float()])


@dataclass(frozen=True)
class PretrainingEvaluation:
    """Means over all held-out predictions and rows; losses in nats, accuracies in 0..1.

    Predictions are of masked tokens, those of a decoder of next tokens. `next_sentence_loss` and
    `next_sentence_accuracy` are None when no row carries that label. `unigram_loss` is the loss of
    predicting every such token by its frequency in training (add-one smoothed): what a model must
    beat to have learned anything from context. Both losses are of exactly the same ids.
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
    with without_dropout(model), torch.no_grad(), autocast(device, autocast_dtype):
        for batch in batches:
            batch = batch.to(device, non_blocking=True)
            _, sums = compute_loss(model, batch, num_predictions=1, num_rows=1)
            totals[:-1] += sums
            totals[-1] += _sum_of_surprise(surprise, batch.masked_ids)
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

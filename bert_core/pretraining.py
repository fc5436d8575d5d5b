"""Pre-training: the batch, the loss of its objective, and the sums that are logged.

Shapes: T tokens, N rows (sequences), P places for predictions, some of them unused.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.model.bert import Bert, MaskedTokenHead
from bert_core.text.collation import PretrainingBatch

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


def compute_loss(
    model: Bert, batch: PretrainingBatch, *, num_predictions: int | Tensor, num_rows: int | Tensor
) -> tuple[Tensor, Tensor]:
    """The micro-batch's share of the global batch's loss, and its sums for the log.

    The loss is the masked-token sum over `num_predictions`, of a decoder the next-token sum, plus
    the next-sentence sum over `num_rows`: both denominators count the global batch, so that the
    gradients of micro-batches and ranks add up to that of the whole (Devlin et al. 2018, appendix
    A.2). They are numbers, or 0-d tensors on the batch's device. The sums are detached float32
    [6], see SUM_NAMES. Nothing here waits for the device.
    """
    places, next_sentence = batch.masked_positions, "next_sentence" in model.heads
    if next_sentence:
        places = torch.cat([places, batch.layout.first_positions])
    states = model.encoder(
        batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout, places
    )
    masked_states, first_states = states.tensor_split([len(batch.masked_positions)])
    loss, sums = _masked_token_loss(model, masked_states, batch, _at_least_one(num_predictions))
    if not next_sentence:
        return loss, torch.cat([sums, sums.new_zeros(3)])
    num_rows = _at_least_one(num_rows)
    row_loss, row_sums = _next_sentence_loss(model, first_states, batch, num_rows)
    return loss + row_loss, torch.cat([sums, row_sums])


def _at_least_one(count: int | Tensor) -> int | Tensor:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _masked_token_loss(
    model: Bert, masked_states: Tensor, batch: PretrainingBatch, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    head = model.heads["next_token" if model.config.is_decoder else "masked_token"]
    assert isinstance(head, MaskedTokenHead)
    words = model.encoder.word_embeddings
    loss, hits = head.loss(masked_states, words, batch.masked_ids, count)
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

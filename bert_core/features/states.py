"""Rows of an encoder -> the hidden states of layers at their places, a micro-batch at a time.

Shapes: P places of a micro-batch, H hidden size.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bert_core.model.encoder import Encoder
from bert_core.predictor import layout_for
from bert_core.tasks.batches import evaluation_batches
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch
from bert_core.tasks.task import hidden_states
from bert_core.text.rng import IntArray
from bert_core.training.loop import autocast


def states_at_places(
    encoder: Encoder,
    rows: EncodedRows,
    layers: Sequence[int],
    *,
    device: torch.device,
    max_tokens: int,
    autocast_dtype: torch.dtype | None,
) -> Iterator[tuple[IntArray, TaskBatch, list[Tensor]]]:
    """Yields the items of a micro-batch, itself, and the states of `layers`, float32 [P, H] each.

    Every item once, longest first; computing stops at the highest layer. The encoder lies on
    `device`; there is no dropout and no gradient, and its training mode is left as it was.
    """
    layout = layout_for(encoder.config, device, autocast_dtype, training=False)
    was_training = encoder.training
    encoder.eval()
    try:
        for items, batch in evaluation_batches(rows, max_tokens=max_tokens, layout=layout):
            moved = batch.to(device, non_blocking=True)
            with torch.inference_mode(), autocast(device, autocast_dtype):
                states = hidden_states(encoder, moved, layers)
            yield items, batch, [each.float() for each in states]
    finally:
        encoder.train(was_training)

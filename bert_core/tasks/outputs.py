"""The answers of a model's head to all rows, micro-batch by micro-batch and over all ranks.

Shapes: P places, R rows, L outputs of the head.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bert_core.model.bert import Bert
from bert_core.model.encoder import without_dropout
from bert_core.model.tagger import FeatureTagger
from bert_core.tasks.encoded_rows import (
    PREDICTION_TOKENS,
    EncodedRows,
    LayoutName,
    evaluation_batches,
    layout_for,
)
from bert_core.tasks.task import FloatArray, Task, compute_outputs
from bert_core.training.loop import autocast
from bert_core.training.ranks import rank, world_size


def compute_all_outputs(
    task: Task,
    model: Bert | FeatureTagger,
    rows: EncodedRows,
    *,
    device: torch.device,
    max_tokens: int = PREDICTION_TOKENS,
    autocast_dtype: torch.dtype | None = None,
    shared: bool = True,
    progress: Callable[[float], None] | None = None,
) -> tuple[FloatArray, float]:
    """The head's answers at all places, float32 [P, L], and the summed loss over the labels.

    Those of a head that is `per_row` are [R, L]; the loss of a coupled task is 0.

    Without dropout; leaves the training mode as it was. With a process group every rank calls this
    with the same rows, computes a share, and gets the whole; unless `shared` is false: then this
    process computes all. `progress` gets the share that is done.
    """
    layout: LayoutName = "packed"
    if isinstance(model, Bert):
        layout = layout_for(model.config, device, autocast_dtype, training=False)
    per_row = task.head.per_row
    has_loss = not task.is_coupled and bool(len(rows.labels)) and bool(rows.label_counts.any())
    where, parts, loss = [], [], 0.0
    share = {"rank": rank(), "world_size": world_size()} if shared else {}
    batches = evaluation_batches(rows, max_tokens=max_tokens, layout=layout, **share)
    num_tokens, done = max(int(rows.lengths.sum()), 1), 0
    with without_dropout(model), torch.inference_mode(), autocast(device, autocast_dtype):
        for items, batch in batches:
            batch = batch.to(device, non_blocking=True)
            answers = compute_outputs(model, batch).float()
            if has_loss:
                loss += float(task.loss(answers, batch)[0])
            where.append(rows.answers_of(items, per_row=per_row))
            parts.append(answers.cpu().numpy())
            done += batch.num_real_tokens
            if progress is not None:
                progress(done / num_tokens)
    mine = where, parts, loss
    found = _of_all_ranks(mine) if shared else [mine]
    widths = [some.shape[1] for _, parts, _ in found for some in parts]
    count = rows.num_answers(per_row=per_row)
    outputs = np.zeros((count, widths[0] if widths else task.head.num_outputs), dtype=np.float32)
    for some_where, some_parts, _ in found:
        for numbers, answers in zip(some_where, some_parts, strict=True):
            outputs[numbers] = answers
    return outputs, sum(some_loss for _, _, some_loss in found)


def _of_all_ranks(mine: Any) -> list[Any]:  # noqa: ANN401 - whatever a rank has
    if world_size() == 1:
        return [mine]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, mine)  # between processes of one run, never from a file
    return gathered

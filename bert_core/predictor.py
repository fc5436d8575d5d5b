"""Predictions of a fine-tuned model folder, in micro-batches of similar lengths.

Shapes: P places, L outputs of the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model.tagger import FeatureTagger
from bert_core.model_folder import CONFIG, load_model_folder
from bert_core.quantization import for_inference, read_precision
from bert_core.strict_json import read_json_object
from bert_core.tasks.answers import Codec
from bert_core.tasks.catalog import task_of
from bert_core.tasks.encoded_rows import EncodedRows, LayoutName, evaluation_batches
from bert_core.tasks.foreign_models import infer_task
from bert_core.tasks.task import FloatArray, Task, compute_outputs
from bert_core.training.loop import autocast
from bert_core.training.ranks import rank, world_size

PREDICTION_TOKENS = 4096
"""Default slots of a micro-batch."""


@dataclass(frozen=True)
class Predictor:
    """A model, its tokenizer and its task, on a device."""

    task_name: str
    task: Task
    model: Bert
    tokenizer: Tokenizer
    device: torch.device

    def predict(
        self, examples: Sequence[Any], *, max_tokens: int = PREDICTION_TOKENS
    ) -> tuple[list[dict[str, Any]], EncodedRows]:
        """A prediction for each example (see `Task.decode`), and the rows they were made of."""
        rows = self.task.encode(examples, self.tokenizer)
        return self.answer(self.task, rows, examples, max_tokens=max_tokens), rows

    def answer(
        self,
        codec: Codec,
        rows: EncodedRows,
        examples: Sequence[Any],
        *,
        max_tokens: int = PREDICTION_TOKENS,
        autocast_dtype: torch.dtype | None = None,
    ) -> list[dict[str, Any]]:
        """A prediction for each example, given the rows that the codec has made of them."""
        outputs, _ = compute_all_outputs(
            self.task,
            self.model,
            rows,
            device=self.device,
            max_tokens=max_tokens,
            autocast_dtype=autocast_dtype,
        )
        return codec.decode(outputs, rows, examples)


def load_predictor(
    folder: Path, device: torch.device | None = None, *, task_name: str | None = None
) -> Predictor:
    """Opens a fine-tuned model folder, ours or one of `transformers`.

    On the CPU unless another device is given; in int8 where the folder says so. `task_name` is the
    task of a folder that does not know its own (see `infer_task`). Raises `UserError` for a folder
    that is damaged or of no task, and for int8 elsewhere than on the CPU.
    """
    device = device or torch.device("cpu")
    _, model, tokenizer = load_model_folder(folder)
    config = read_json_object(folder / CONFIG)
    name, task = task_of(config, model) or infer_task(folder, config, model, task_name)
    model = for_inference(model, read_precision(folder), device)
    return Predictor(name, task, model, tokenizer, device)


def layout_for(
    config: ModelConfig, device: torch.device, dtype: torch.dtype | None, *, training: bool
) -> LayoutName:
    """Returns the cheapest layout: packed wherever attention supports it.

    The packed kernel of CUDA works in 16 bits and knows no dropout; there rows are padded to the
    longest of their micro-batch instead.
    """
    dropout = training and config.attention_probs_dropout_prob > 0
    if device.type == "cpu" or (device.type == "cuda" and dtype is not None and not dropout):
        return "packed"
    return "padded"


def compute_all_outputs(
    task: Task,
    model: Bert | FeatureTagger,
    rows: EncodedRows,
    *,
    device: torch.device,
    max_tokens: int = PREDICTION_TOKENS,
    autocast_dtype: torch.dtype | None = None,
) -> tuple[FloatArray, float]:
    """The head's answers at all places, float32 [P, L], and the summed loss over the labels.

    Without dropout; leaves the training mode as it was. With a process group every rank calls this
    with the same rows, computes a share, and gets the whole.
    """
    layout: LayoutName = "packed"
    if isinstance(model, Bert):
        layout = layout_for(model.config, device, autocast_dtype, training=False)
    outputs = np.zeros((len(rows.places), task.head.num_outputs), dtype=np.float32)
    was_training = model.training
    model.eval()
    places, parts, loss = [np.empty(0, dtype=np.int64)], [outputs[:0]], 0.0
    batches = evaluation_batches(
        rows, max_tokens=max_tokens, layout=layout, rank=rank(), world_size=world_size()
    )
    try:
        with torch.inference_mode(), autocast(device, autocast_dtype):
            for items, batch in batches:
                batch = batch.to(device, non_blocking=True)
                answers = compute_outputs(model, batch).float()
                if len(rows.labels):  # raw texts have none, not even unknown ones
                    loss += float(task.loss(answers, batch)[0])
                places.append(rows.places_of(items))
                parts.append(answers.cpu().numpy())
    finally:
        model.train(was_training)
    mine = np.concatenate(places), np.concatenate(parts), loss
    total = 0.0
    for some_places, some_outputs, some_loss in _of_all_ranks(mine):
        outputs[some_places] = some_outputs
        total += some_loss
    return outputs, total


def _of_all_ranks(mine: Any) -> list[Any]:  # noqa: ANN401 - whatever a rank has
    if world_size() == 1:
        return [mine]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, mine)  # between processes of one run, never from a file
    return gathered

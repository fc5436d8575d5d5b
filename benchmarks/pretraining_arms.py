"""The contestants of the pre-training benchmark: one batch and one set of weights in, arms out.

Every arm does the whole step: forward, backward, clipping at 1.0, fused AdamW.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measurement import Arm
from bert_core.config import IGNORE_INDEX, ModelConfig
from bert_core.hugging_face import to_hugging_face
from bert_core.model.bert import Bert
from bert_core.model.layout import Packed, Padded
from bert_core.tasks.pretraining import PretrainingBatch, compute_loss

MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Rows:
    """The same rows for every arm; ids are [batch, seq], padded at the end."""

    lengths: list[int]
    input_ids: Tensor
    token_type_ids: Tensor
    labels: Tensor
    next_sentence: Tensor

    @property
    def num_predictions(self) -> int:
        """Masked tokens of all rows."""
        return int((self.labels != IGNORE_INDEX).sum())


def make_rows(vocab_size: int, batch: int, sequence_length: int, *, natural: bool) -> Rows:
    """Random rows, seeded. Natural lengths spread as beta(2, 2) does, half the length on average.

    They come sorted by length, which is how a packed loader hands them out on the CPU.
    """
    random = np.random.default_rng(1)
    lengths = np.full(batch, sequence_length)
    if natural:
        lengths = np.sort((random.beta(2, 2, batch) * sequence_length).astype(int).clip(8))
    places = np.arange(sequence_length)
    input_ids = random.integers(5, vocab_size, (batch, sequence_length))
    real = places < lengths[:, None]
    labels = np.full((batch, sequence_length), IGNORE_INDEX)
    for row, length in enumerate(lengths):
        count = max(1, round(MASKED_SHARE * length))
        masked = random.choice(np.arange(1, length - 1), count, replace=False)
        labels[row, masked] = random.integers(5, vocab_size, count)
    segments = (places >= lengths[:, None] // 2) & real
    return Rows(
        lengths.tolist(),
        torch.from_numpy(input_ids * real),
        torch.from_numpy(segments.astype(np.int64)),
        torch.from_numpy(labels),
        torch.from_numpy(random.integers(0, 2, batch)),
    )


def our_batch(rows: Rows, *, packed: bool) -> PretrainingBatch:
    """The rows as our model takes them."""
    batch, seq = rows.input_ids.shape
    real = torch.arange(seq) < torch.tensor(rows.lengths).unsqueeze(1)
    kept = real if packed else torch.ones_like(real)
    labels = rows.labels[kept]
    masked_positions = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    layout = Packed.from_lengths(rows.lengths, seq) if packed else Padded(real, bool(real.all()))
    return PretrainingBatch(
        input_ids=rows.input_ids[kept],
        token_type_ids=rows.token_type_ids[kept],
        position_ids=torch.arange(seq).repeat(batch, 1)[kept],
        layout=layout,
        masked_positions=masked_positions,
        masked_ids=labels[masked_positions],
        next_sentence=rows.next_sentence,
        num_real_tokens=sum(rows.lengths),
        num_slots=int(kept.sum()),
    )


def our_arm(
    name: str, model: Bert, batch: PretrainingBatch, device: torch.device, *, compiled: bool
) -> tuple[Arm, Callable[[], Tensor]]:
    """Ours, and its loss alone."""
    batch, num_predictions = batch.to(device), len(batch.masked_ids)

    def plain() -> Tensor:
        counts = {"num_predictions": num_predictions, "num_rows": len(batch.next_sentence)}
        return compute_loss(model, batch, **counts)[0]

    loss = _autocast(torch.compile(plain) if compiled else plain, device)
    return Arm(name, is_peer=False, step=_step(model, loss)), loss


def their_arm(
    name: str, model: nn.Module, rows: Rows, device: torch.device, *, compiled: bool
) -> tuple[Arm, Callable[[], Tensor]]:
    """Transformers', and its loss alone; without a mask where nothing is padding."""
    seq = rows.input_ids.shape[1]
    real = torch.arange(seq) < torch.tensor(rows.lengths).unsqueeze(1)
    inputs = {
        "input_ids": rows.input_ids.to(device),
        "token_type_ids": rows.token_type_ids.to(device),
        "attention_mask": None if real.all() else real.long().to(device),
        "labels": rows.labels.to(device),
        "next_sentence_label": rows.next_sentence.to(device),
    }
    runnable = torch.compile(model) if compiled else model
    loss = _autocast(lambda: runnable(**inputs).loss, device)
    return Arm(name, is_peer=True, step=_step(model, loss)), loss


def our_model(config: ModelConfig, device: torch.device) -> Bert:
    """A fresh model of ours, the same each time."""
    torch.manual_seed(0)
    return Bert.for_pretraining(config).to(device)


def their_model(config: ModelConfig, attention: str, device: torch.device) -> nn.Module:
    """Transformers' model with the weights of `our_model`."""
    from transformers import BertConfig, BertForPreTraining

    values = config.model_dump(exclude={"position_embedding"})
    theirs = BertForPreTraining._from_config(BertConfig(**values), attn_implementation=attention)
    state = to_hugging_face(our_model(config, torch.device("cpu")).state_dict())
    # Theirs has the tied weights under a second name each.
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    theirs.load_state_dict(state)
    return nn.Module.to(theirs, device)


def loss_and_gradient_norm(model: nn.Module, loss: Callable[[], Tensor]) -> tuple[float, float]:
    """Both without dropout, as the arms are compared before they are timed."""
    model.eval()
    value = loss()
    value.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    model.zero_grad(set_to_none=True)
    model.train()
    return value.item(), norm.item()


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )

    def step() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _autocast(loss: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Under bfloat16 autocast on CUDA, in float32 on the CPU."""

    def run() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return loss()

    return run

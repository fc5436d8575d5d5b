"""A tiny model, loss and batches of the shapes the loop knows, for the tests of training."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = -100


@dataclass(frozen=True)
class TinyBatch:
    features: Tensor  # [rows, 8]
    labels: Tensor  # [rows]
    num_real_tokens: int
    num_slots: int

    def to(self, device, non_blocking=False):
        return replace(self, features=self.features.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class TinyStep:
    micro_batches: list[TinyBatch]
    num_predictions: int
    num_rows: int


class TinyModel(nn.Module):
    """Has what matters here: a tied weight, biases, a layer norm, dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, 16, bias=False)
        self.dense = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(16, 8, bias=True)
        self.output = nn.Linear(8, 16, bias=False)
        self.output.weight = self.embedding.weight  # tied

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.dropout(F.gelu(self.dense(self.embedding(features))))
        return self.output(self.decoder(self.norm(hidden)))  # [rows, 16]


def tiny_loss(model, batch, *, num_predictions, num_rows):
    logits = model(batch.features)
    loss = F.cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORE)
    kept = batch.labels != IGNORE
    correct = (logits.argmax(-1) == batch.labels).sum()
    zero = torch.zeros(())
    sums = torch.stack([loss.detach(), correct, kept.sum(), zero, zero, kept.sum()])
    return loss / num_predictions, sums.float()


def tiny_batch(step: int, index: int, rows: int, dtype=torch.float32) -> TinyBatch:
    generator = torch.Generator().manual_seed(1000 * step + index)
    features = torch.randn(rows, 8, generator=generator, dtype=dtype)
    labels = torch.randint(0, 16, (rows,), generator=generator)
    return TinyBatch(features, labels, num_real_tokens=rows, num_slots=rows + 2)


def tiny_steps(start: int, sizes=(5, 3)):
    """Global batches from `start` on, without end: a pure function of the step."""
    step = start
    while True:
        batches = [tiny_batch(step, index, rows) for index, rows in enumerate(sizes)]
        yield TinyStep(batches, sum(sizes), sum(sizes))
        step += 1

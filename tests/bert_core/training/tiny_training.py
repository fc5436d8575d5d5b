"""A tiny model, loss and batches of the shapes the loop knows, for the tests of training."""

import multiprocessing
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.settings import PretrainingOptimizerSettings
from bert_core.training.loop import TrainingState, train
from bert_core.training.optimization import create_optimizer, linear_schedule

IGNORE = -100


@dataclass(frozen=True)
class TinyBatch:
    features: Tensor  # [rows, 8]
    labels: Tensor  # [rows]
    num_real_tokens: int
    num_slots: int

    def to(self, device, non_blocking=False):  # noqa: ARG002 - the shape of a real batch
        return replace(self, features=self.features.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class TinyStep:
    micro_batches: list[TinyBatch]
    num_predictions: int
    num_rows: int
    sum_of_squared_lengths: int = 0

    @property
    def counts(self):
        return {"num_predictions": self.num_predictions, "num_rows": self.num_rows}


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
    sums = torch.stack([loss.detach(), correct, kept.sum()])
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


CPU = torch.device("cpu")


def tiny_state(optimizer: str = "adamw", dropout: float = 0.1) -> TrainingState:
    torch.manual_seed(0)
    model = TinyModel(dropout)
    settings = PretrainingOptimizerSettings(name=optimizer, peak_learning_rate=0.02, warmup_steps=3)
    return TrainingState(model, create_optimizer(model, settings))


def tiny_train(state: TrainingState, total_steps: int = 10, **options):
    """Trains on `tiny_steps` under one schedule of 10 steps, from wherever the state stands."""

    def rate(step):
        return 0.02 * linear_schedule(step, total_steps=10, warmup_steps=3)

    settings = {
        "total_steps": total_steps,
        "schedule": rate,
        "max_gradient_norm": 1.0,
        "device": CPU,
        "autocast_dtype": None,
        "seed": 7,
    }
    steps = options.pop("steps", None) or tiny_steps(state.step)
    loss = options.pop("compute_loss", tiny_loss)
    return train(state, steps, loss, **{**settings, **options})


def processes():
    """A context whose processes start in milliseconds, because its server has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training_processes", "torch._dynamo"])
    return context


def run_ranks(function, num_ranks: int, folder, *arguments) -> None:
    """Runs `function(rank, folder, *arguments)` in a real gloo group of `num_ranks` processes."""
    context = processes()
    store = Path(folder) / f"store-{uuid.uuid4().hex}"
    ranks = [
        context.Process(target=_rank, args=(function, rank, num_ranks, store, folder, *arguments))
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    assert codes == [0] * num_ranks


def _rank(function, rank, num_ranks, store, folder, *arguments):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks
    )
    try:
        function(rank, Path(folder), *arguments)
    finally:
        torch.distributed.destroy_process_group()


def double_steps(shares):
    """Global batches of 16 rows divided into `shares`; the last row carries no label."""
    for step in range(3):
        whole = tiny_batch(step, 0, 16, dtype=torch.float64)
        whole.labels[-1] = IGNORE
        parts = zip(
            whole.features.split([n for share in shares for n in share]),
            whole.labels.split([n for share in shares for n in share]),
            strict=True,
        )
        batches = [TinyBatch(rows, labels, len(rows), len(rows)) for rows, labels in parts]
        divided = []
        for share in shares:
            divided.append(TinyStep(batches[: len(share)], 15, 16))
            batches = batches[len(share) :]
        yield divided


def double_state():
    state = tiny_state(dropout=0.0)
    state.model.double()
    return state


def gradients_of(state):
    return {name: p.grad.clone() for name, p in state.model.named_parameters()}

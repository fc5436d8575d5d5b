"""Compare held-out loss over training time with transformers' BertForPreTraining.

`python -m benchmarks.learning_curve --shards DIR --minutes 30`. Both arms start from the same
weights, read the same batches at their own pace and alternate every few seconds, so that a busy
machine slows both equally. Each trains for all the minutes; evaluation is not counted.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measurement import surroundings
from benchmarks.pretraining.arms import our_model, their_model
from benchmarks.results import write_results
from bert_core.config import IGNORE_INDEX, SIZES
from bert_core.hugging_face.families import BERT
from bert_core.model.layout import Padded
from bert_core.pretraining import PretrainingEvaluation, compute_loss, evaluate_pretraining
from bert_core.settings import BatchSettings, OptimizerSettings, RowSettings
from bert_core.text.batches import BatchSource, StepBatches
from bert_core.text.collation import PretrainingBatch
from bert_core.text.masking import Vocabulary
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.optimization import create_optimizer

TURN_SECONDS = 10.0
EVALUATIONS = 12
WARMUP_SHARE = 0.05
"""Share of the time; afterwards the learning rate falls linearly to 0, in both arms."""


@dataclass
class TimedArm:
    """A model in training, its training time, and its held-out metrics over that time."""

    name: str
    model: nn.Module
    source: BatchSource
    loss: Callable[[StepBatches], Tensor]
    evaluate: Callable[[], PretrainingEvaluation]
    optimizer: torch.optim.Optimizer = field(init=False)
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)

    def turn(self, budget: float, peak_learning_rate: float) -> None:
        """Trains for some seconds, or to the end of the budget."""
        until = min(self.seconds + TURN_SECONDS, budget)
        torch.manual_seed(self.steps)
        while self.seconds < until:
            begin = time.perf_counter()
            batches = self.source.step(self.steps)
            share = self.seconds / budget
            rate = min(share / WARMUP_SHARE, (1 - share) / (1 - WARMUP_SHARE))
            for group in self.optimizer.param_groups:
                group["lr"] = peak_learning_rate * max(rate, 1e-3)
            self.loss(batches).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.steps += 1
            self.tokens += sum(batch.num_real_tokens for batch in batches.micro_batches)
            self.seconds += time.perf_counter() - begin

    def measure(self) -> None:
        """Adds a point to the curve."""
        point = asdict(self.evaluate())
        self.curve.append(
            {"seconds": self.seconds, "steps": self.steps, "tokens": self.tokens} | point
        )
        print(
            f"{self.name:13} {self.seconds:6.0f} s  {self.steps:6,} steps  "
            f"masked-token loss {point['masked_token_loss']:.3f}  "
            f"accuracy {point['masked_token_accuracy']:.1%}",
            flush=True,
        )


def main() -> None:
    """Trains both in turns, prints the points and writes JSON and plot."""
    options = parse_arguments()
    torch.set_flush_denormal(True)
    load_the_compiler()
    arms, unigram = prepare(options)
    budget = options.minutes * 60
    due = dict.fromkeys((arm.name for arm in arms), 0)
    while any(arm.seconds < budget for arm in arms):
        for arm in arms:
            arm.turn(budget, options.peak_learning_rate)
            reached = int(EVALUATIONS * min(arm.seconds / budget, 1))
            if reached > due[arm.name]:
                due[arm.name] = reached
                arm.measure()
    results: dict[str, Any] = {
        "benchmark": "learning_curve",
        "settings": {k: v for k, v in vars(options).items() if k not in ("json", "plot", "shards")},
        "surroundings": surroundings(torch.device("cpu")),
        "unigram_loss": unigram,
        "arms": {
            arm.name: {
                "tokens_per_second": arm.tokens / arm.seconds,
                "curve": arm.curve,
            }
            for arm in arms
        },
    }
    print(f"unigram baseline {unigram:.3f}")
    write_results(results, options.json)
    if options.plot:
        plot(results, options.plot)


def load_the_compiler() -> None:
    """Triggers the imports of an optimizer's first step, seconds that belong to no arm."""
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.AdamW([weight], fused=True).step()


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning_curve", description=__doc__
    )
    parser.add_argument("--shards", type=Path, required=True, help="folder of token shards")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time of each arm")
    parser.add_argument("--size", choices=tuple(SIZES), default="mini")
    parser.add_argument("--rows", type=int, default=16, help="rows of a step")
    parser.add_argument("--sequence_length", type=int, default=128)
    parser.add_argument("--peak_learning_rate", type=float, default=1e-3)
    parser.add_argument("--heldout_rows", type=int, default=1024)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None, help="where the picture goes, .png")
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> tuple[list[TimedArm], float]:
    """Both arms with the same weights, and the loss of the unigram baseline."""
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.shards))
    config = SIZES[options.size].model_copy(
        update={
            "vocab_size": vocabulary.size,
            "pad_token_id": vocabulary.pad_id,
            "max_position_embeddings": options.sequence_length,
        }
    )
    device = torch.device("cpu")
    ours, theirs = our_model(config, device), their_model(config, "sdpa", device)
    mirror = our_model(config, device)  # evaluates their weights with our code

    def source(split: str, *, padded: bool) -> BatchSource:
        return BatchSource(
            open_shards(options.shards, split),
            vocabulary,
            rows=RowSettings(),
            batch=BatchSettings(global_batch_size=options.rows, micro_batch_size=options.rows),
            sequence_length=options.sequence_length,
            seed=0,
            phase=0,
            static_shapes=padded,
        )

    heldout = source("heldout", padded=False)
    counts = np.load(options.shards / "token_counts.npy", allow_pickle=False)

    def evaluate(model: nn.Module) -> PretrainingEvaluation:
        rows = heldout.epoch_zero(options.heldout_rows)
        return evaluate_pretraining(model, rows, compute_loss, device=device, token_counts=counts)

    def evaluate_theirs() -> PretrainingEvaluation:
        mirror.load_state_dict(BERT.to_ours(theirs.state_dict()))
        return evaluate(mirror)

    arms = [
        TimedArm(
            "ours", ours, source("train", padded=False), lambda b: our_loss(ours, b),
            lambda: evaluate(ours),
        ),
        TimedArm(
            "transformers", theirs, source("train", padded=True),
            lambda b: their_loss(theirs, b), evaluate_theirs,
        ),
    ]  # fmt: skip
    settings = OptimizerSettings(peak_learning_rate=options.peak_learning_rate)
    for arm in arms:
        arm.optimizer = create_optimizer(arm.model, settings)
    return arms, evaluate(ours).unigram_loss


def our_loss(model: nn.Module, batches: StepBatches) -> Tensor:
    """The loss of a step of one micro-batch."""
    (batch,) = batches.micro_batches
    return compute_loss(model, batch, **batches.counts)[0]  # pyright: ignore[reportArgumentType] - a Bert


def their_loss(model: nn.Module, batches: StepBatches) -> Tensor:
    """The same loss from transformers' model: padded to the longest row, labels everywhere."""
    (batch,) = batches.micro_batches
    return model(**as_transformers_input(batch)).loss


def as_transformers_input(batch: PretrainingBatch) -> dict[str, Tensor]:
    """A padded batch as transformers takes it."""
    if not isinstance(batch.layout, Padded):
        raise TypeError("transformers takes padded batches")
    real = batch.masked_ids != IGNORE_INDEX
    labels = torch.full_like(batch.input_ids, IGNORE_INDEX)
    labels[batch.masked_positions[real]] = batch.masked_ids[real]
    mask = batch.layout.mask
    width = int(mask.sum(1).max())
    shaped = {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "labels": labels,
        "attention_mask": mask.long(),
    }
    cut = {name: tensor.view(mask.shape)[:, :width].contiguous() for name, tensor in shaped.items()}
    return cut | {"next_sentence_label": batch.next_sentence}


def plot(results: dict[str, Any], path: Path) -> None:
    """Draws held-out loss over minutes for both arms, and the baseline."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for (name, arm), colour in zip(results["arms"].items(), ("#2563eb", "#ea580c"), strict=True):
        minutes = [point["seconds"] / 60 for point in arm["curve"]]
        losses = [point["masked_token_loss"] for point in arm["curve"]]
        axes.plot(minutes, losses, marker="o", markersize=3, color=colour)
        axes.annotate(
            f"{name} {losses[-1]:.2f}", (minutes[-1], losses[-1]), color=colour,
            xytext=(4, 0), textcoords="offset points", va="center",
        )  # fmt: skip
    axes.axhline(results["unigram_loss"], color="#64748b", linestyle="--", linewidth=1)
    axes.annotate("unigram baseline", (0, results["unigram_loss"]), color="#64748b",
                  xytext=(2, 4), textcoords="offset points")  # fmt: skip
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("held-out masked-token loss (nats)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0, results["settings"]["minutes"] * 1.18)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()

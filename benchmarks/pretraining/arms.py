"""The contestants of the pre-training benchmark: the same rows and weights in, steps to time out.

Every one does the whole step: forward, backward, clipping at 1.0, AdamW.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.pretraining.rows import (
    Rows,
    packed_bins,
    padded_batches,
    ragged_batch,
    their_inputs,
)
from bert_core.config import ModelConfig
from bert_core.hugging_face import to_hugging_face
from bert_core.model.bert import Bert
from bert_core.tasks.pretraining import compute_loss
from bert_core.text.collation import PretrainingBatch
from bert_core.training.loop import compiled

MAX_AUTOTUNE = "max-autotune-no-cudagraphs"
"""Without graphs, which keep the memory of every arm that has used one."""


@dataclass(frozen=True)
class Task:
    """What every contestant computes; bfloat16 autocast or float32 as `autocast_dtype` says."""

    config: ModelConfig
    rows: Rows
    device: torch.device
    autocast_dtype: torch.dtype | None


@dataclass(frozen=True)
class Trial:
    """A model, the loss of each micro-batch, divided by the step's counts, and its optimizer."""

    model: nn.Module
    losses: Sequence[Callable[[], Tensor]]
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """One step of training."""
        for loss in self.losses:
            loss().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def loss_and_gradient_norm(self) -> tuple[float, float]:
        """Both without dropout, as the arms are compared before they are timed."""
        self.model.eval()
        total = 0.0
        for loss in self.losses:
            value = loss()
            value.backward()
            total += value.item()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), float("inf")).item()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.train()
        return total, norm


@dataclass(frozen=True)
class Contestant:
    """One arm before it is built: `build(parts)` does the step in so many micro-batches."""

    name: str
    is_peer: bool
    compiled: bool
    build: Callable[[int], Trial]


def contestants(
    task: Task, *, max_autotune: bool = False, paper_recipe: bool = False
) -> list[Contestant]:
    """Those that are timed on the task's device, ours first; transformers' where it is installed.

    On the CPU, where compilation takes minutes, everything runs eagerly, transformers with either
    of its attentions. With `max_autotune` both sides are compiled that way too; `paper_recipe` is a
    row of either with attention dropout, for which ours needs the padded layout.
    """
    on_cuda = task.device.type == "cuda"
    chosen = _on_cuda(task) if on_cuda else _on_cpu(task)
    if max_autotune:
        chosen.append(ours("ours, fast, max-autotune", task, packed_bins, mode=MAX_AUTOTUNE))
        chosen.append(_theirs("transformers, sdpa, max-autotune", task, mode=MAX_AUTOTUNE))
    if paper_recipe:
        dropout = {"attention_probs_dropout_prob": 0.1}
        recipe = Task(
            task.config.model_copy(update=dropout), task.rows, task.device, task.autocast_dtype
        )
        mode = "default" if on_cuda else None
        chosen.append(ours("ours, attention dropout", recipe, padded_batches, mode=mode))
        chosen.append(_theirs("transformers, attention dropout", recipe, mode=mode))
    with_peers = find_spec("transformers") is not None
    return [each for each in chosen if with_peers or not each.is_peer]


def _on_cpu(task: Task) -> list[Contestant]:
    return [
        ours("ours", task, lambda rows, _: [ragged_batch(rows)]),
        _theirs("transformers, sdpa", task),
        _theirs("transformers, eager", task, attention="eager"),
    ]


def _on_cuda(task: Task) -> list[Contestant]:
    return [
        ours("ours, plain", task, padded_batches),
        fast(task),
        _theirs("transformers, sdpa", task),
        _theirs("transformers, sdpa, compiled", task, mode="default"),
    ]


def fast(task: Task) -> Contestant:
    """Ours as it trains on CUDA: packed bins of one shape, compiled."""
    return ours("ours, fast", task, packed_bins, mode="default")


def ours(
    name: str,
    task: Task,
    batches: Callable[[Rows, int], Sequence[PretrainingBatch]],
    *,
    mode: str | None = None,
    loss: Callable[..., tuple[Tensor, Tensor]] = compute_loss,
    change: Callable[[Bert], object] | None = None,
    fused: bool = True,
) -> Contestant:
    """Ours over `batches`, compiled where there is a `mode`; `change` may rebuild the model."""

    def build(parts: int) -> Trial:
        model = our_model(task.config, task.device)
        if change is not None:
            change(model)
        run = our_loss(model, task.rows.counts, mode=mode, loss=loss)
        placed = [batch.to(task.device) for batch in batches(task.rows, parts)]
        losses = [_autocast(partial(run, batch), task) for batch in placed]
        return Trial(model, losses, _optimizer(model, fused=fused))

    return Contestant(name, is_peer=False, compiled=mode is not None, build=build)


def our_loss(
    model: Bert,
    counts: Mapping[str, int],
    *,
    mode: str | None,
    loss: Callable[..., tuple[Tensor, Tensor]] = compute_loss,
) -> Callable[[PretrainingBatch], Tensor]:
    """The loss of a batch; compiled it is one graph of static shapes, or an error."""
    run = loss
    if mode == "default":
        run = compiled(loss)
    elif mode is not None:
        run = torch.compile(loss, fullgraph=True, dynamic=False, mode=mode)
    return lambda batch: run(model, batch, **counts)[0]


def _theirs(
    name: str, task: Task, *, attention: str = "sdpa", mode: str | None = None
) -> Contestant:
    def build(parts: int) -> Trial:
        model = their_model(task.config, attention, task.device)

        def plain(inputs: dict[str, Any]) -> Tensor:
            return model(**inputs).loss / parts

        # Only the loss leaves what is compiled: logits that nobody asks for need not be kept.
        run = plain if mode is None else torch.compile(plain, mode=mode)
        placed = [
            {name: None if each is None else each.to(task.device) for name, each in inputs.items()}
            for inputs in their_inputs(task.rows, parts)
        ]
        losses = [_autocast(partial(run, inputs), task) for inputs in placed]
        return Trial(model, losses, _optimizer(model))

    return Contestant(name, is_peer=True, compiled=mode is not None, build=build)


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


def _optimizer(model: nn.Module, *, fused: bool = True) -> torch.optim.Optimizer:
    # Not fused it is what torch would else choose on CUDA, a few launches for all the weights.
    return torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        eps=1e-6,
        weight_decay=0.01,
        fused=True if fused else None,
        foreach=None if fused else True,
    )


def _autocast(loss: Callable[[], Tensor], task: Task) -> Callable[[], Tensor]:
    def run() -> Tensor:
        dtype = task.autocast_dtype
        with torch.autocast(task.device.type, dtype, enabled=dtype is not None):
            return loss()

    return run

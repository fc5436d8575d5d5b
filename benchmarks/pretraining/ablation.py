"""Measure the fast arm without one technique at a time.

`bert_core` has no switches for this: the arms call it with other batches, another loss or a rebuilt
layer.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.pretraining.arms import (
    Contestant,
    Rows,
    Task,
    fast,
    make_rows,
    ours,
    packed_bins,
    padded_batches,
    rows_for,
)
from benchmarks.pretraining.rounds import (
    TrainingArm,
    figures,
    prepare,
    prepared_or_failed,
    release,
    run_rounds,
)
from benchmarks.results import ResultsSoFar
from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError, nearest
from bert_core.model.bert import Bert, MaskedTokenHead
from bert_core.model.operations import project
from bert_core.text.collation import PretrainingBatch

SMALL_STEP_TOKENS = 8192


@dataclass(frozen=True)
class Row:
    """A contestant that goes `without` something; `task` may be another than that of the rest."""

    without: str
    contestant: Contestant
    task: Task


def ablation_rows(task: Task) -> dict[str, Row]:
    """All rows by name."""
    small, exact = _small(task), replace(task, autocast_dtype=None)

    def row(without: str, contestant: Contestant, of: Task = task) -> Row:
        return Row(without, contestant, of)

    return {
        "compile": row("compilation", ours("not compiled", task, packed_bins)),
        "packing": row("packing: padded rows", _fast_but("padded", task, batches=padded_batches)),
        "masked_rows": row(
            "vocabulary for masked tokens only: for all of them",
            _fast_but("all tokens", task, batches=_all_predicted),
        ),
        "last_layer": row(
            "last layer only where it is read: everywhere",
            _fast_but("whole last layer", task, loss=whole_last_layer_loss),
        ),
        "padded_vocabulary": row(
            "vocabulary filled up to a multiple of 64",
            _fast_but("vocabulary as it is", task, loss=plain_vocabulary_loss),
        ),
        "fused_projections": row(
            "query, key and value in one product",
            _fast_but("three products", task, change=split_projections),
        ),
        "fused_adamw": row("fused AdamW: foreach", _fast_but("AdamW", task, fused=False)),
        "large_step": row(f"large steps: {SMALL_STEP_TOKENS // 1024}k tokens", fast(small), small),
        "bfloat16": row(
            "bfloat16, and so the packed kernel: float32, padded rows",
            _fast_but("float32", exact, batches=padded_batches),
            exact,
        ),
    }


def _fast_but(name: str, task: Task, **changed: Any) -> Contestant:  # noqa: ANN401 - as `ours`
    return ours(name, task, **{"batches": packed_bins, "mode": "default"} | changed)


def chosen_rows(task: Task, names: Collection[str]) -> dict[str, Row]:
    """The rows of these names, all where there is none; raises `UserError` for an unknown one."""
    rows = ablation_rows(task)
    for name in names:
        if name not in rows:
            known = f"one of {', '.join(rows)}{nearest(name, rows)}"
            raise UserError("no such row", f"--ablation {name}", known)
    return {name: row for name, row in rows.items() if not names or name in names}


def ablate(
    task: Task,
    rows: dict[str, Row],
    so_far: ResultsSoFar,
    *,
    flops_of: Callable[[Rows], float],
    timing: dict[str, Any],
    warmup: int,
) -> None:
    """Times each row in turns with our fast arm, one row after the other; keeps what it finds.

    A row's `ratio` is how many times as fast the fast arm is, in tokens a second. A row for which
    the time of the longest so far is not left is left out.
    """
    device, peaks, before = task.device, so_far.values["peaks"], so_far.seconds_left
    whole = prepare(fast(task), device, warmup=warmup)
    longest, found = before - so_far.seconds_left, {}
    for name, row in rows.items():
        before = so_far.seconds_left
        if before < longest:
            so_far.leave_out(name)
            continue
        arm = prepared_or_failed(
            row.contestant,
            device,
            so_far,
            like=whole if row.task.rows is task.rows else None,
            warmup=warmup,
        )
        longest = max(longest, before - so_far.seconds_left)
        if arm is None:
            continue
        whole.forget()
        run_rounds([whole, arm], device, seconds_left=lambda: so_far.seconds_left, **timing)
        tokens, flops = row.task.rows.num_tokens, flops_of(row.task.rows)
        values = figures(arm, tokens=tokens, model_flops=flops, peaks=peaks)
        found[name] = {
            "without": row.without,
            **values,
            "ratio": _ratio(arm, whole, task.rows.num_tokens / tokens),
        }
        kept = figures(
            whole, tokens=task.rows.num_tokens, model_flops=flops_of(task.rows), peaks=peaks
        )
        so_far.keep(arms={whole.name: kept}, ablation=found)
        del arm
        release(device)
        longest = max(longest, before - so_far.seconds_left)


def _ratio(arm: TrainingArm, whole: TrainingArm, tokens: float) -> float:
    """How many times as many tokens a second `whole` does, which has `tokens` times as many."""
    return tokens * arm.median_seconds / whole.median_seconds


def _small(task: Task) -> Task:
    rows, length = task.rows, task.rows.sequence_length
    natural = min(rows.lengths) < length
    count = rows_for(min(SMALL_STEP_TOKENS, rows.num_tokens), length, natural=natural)
    return replace(task, rows=make_rows(task.config.vocab_size, count, length, natural=natural))


def _all_predicted(rows: Rows, parts: int) -> list[PretrainingBatch]:
    """Packed bins in which every token has a place for its prediction, most of them unused."""
    return [_predicting_all(batch) for batch in packed_bins(rows, parts)]


def _predicting_all(batch: PretrainingBatch) -> PretrainingBatch:
    labels = torch.full((batch.num_slots,), IGNORE_INDEX)
    used = batch.masked_ids != IGNORE_INDEX
    labels[batch.masked_positions[used]] = batch.masked_ids[used]
    return replace(batch, masked_positions=torch.arange(batch.num_slots), masked_ids=labels)


def whole_last_layer_loss(
    model: Bert, batch: PretrainingBatch, *, num_predictions: int | Tensor, num_rows: int | Tensor
) -> tuple[Tensor]:
    """The loss of `compute_loss`; the last layer is computed for every token, then looked up."""
    states = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout)
    masked = states.index_select(0, batch.masked_positions)
    logits = _logits(model, masked, multiple=64)
    first = states.index_select(0, batch.layout.first_positions)
    return (_loss(model, batch, logits, first, num_predictions, num_rows),)


def plain_vocabulary_loss(
    model: Bert, batch: PretrainingBatch, *, num_predictions: int | Tensor, num_rows: int | Tensor
) -> tuple[Tensor]:
    """The loss of `compute_loss`; the product runs over the vocabulary as long as it is."""
    places = torch.cat([batch.masked_positions, batch.layout.first_positions])
    states = model.encoder(
        batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout, places
    )
    masked, first = states.tensor_split([len(batch.masked_positions)])
    logits = _logits(model, masked, multiple=1)
    return (_loss(model, batch, logits, first, num_predictions, num_rows),)


def _logits(model: Bert, masked: Tensor, *, multiple: int) -> Tensor:
    head = model.heads["masked_token"]
    assert isinstance(head, MaskedTokenHead)
    return project(head.features(masked), model.encoder.word_embeddings, head.bias, multiple)


def _loss(
    model: Bert,
    batch: PretrainingBatch,
    logits: Tensor,
    first: Tensor,
    num_predictions: int | Tensor,
    num_rows: int | Tensor,
) -> Tensor:
    follows = model.heads["next_sentence"](model.heads["pooler"](first))
    masked = F.cross_entropy(logits, batch.masked_ids, reduction="sum") / num_predictions
    return masked + F.cross_entropy(follows, batch.next_sentence, reduction="sum") / num_rows


class ThreeProjections(nn.Module):
    """Query, key and value as three products, in place of the fused one whose weights it takes."""

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        inputs, outputs = fused.in_features, fused.out_features // 3
        self.parts = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(3))
        pieces = zip(fused.weight.chunk(3), fused.bias.chunk(3), strict=True)
        with torch.no_grad():
            for part, (weight, bias) in zip(self.parts, pieces, strict=True):
                part.get_parameter("weight").copy_(weight)
                part.get_parameter("bias").copy_(bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, 3H] from the states [T, H]."""
        return torch.cat([part(hidden_states) for part in self.parts], dim=1)


def split_projections(model: Bert) -> None:
    """Puts `ThreeProjections` into every layer."""
    for layer in model.encoder.layers:
        fused = layer.get_submodule("query_key_value")
        assert isinstance(fused, nn.Linear)
        layer.add_module("query_key_value", ThreeProjections(fused).to(fused.weight.device))

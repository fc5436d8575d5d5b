"""Build the arms of the pre-training benchmark: the rows of a step, and the steps to time.

All arms get the same rows and weights and do the whole step: forward, backward, clipping at 1.0,
AdamW. Each takes the rows in its own form: ragged, padded, packed, or as transformers takes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert_core.config import IGNORE_INDEX, ModelConfig, ModernConfig
from bert_core.hugging_face.families import BERT, MODERN_BERT
from bert_core.model.bert import Bert
from bert_core.pretraining import compute_loss
from bert_core.text import collation
from bert_core.text.collation import PretrainingBatch
from bert_core.text.masking import MaskedRows
from bert_core.text.packing import pack
from bert_core.text.rng import IntArray
from bert_core.training.loop import compiled

MASKED_SHARE = 0.15
SHORTEST = 8
FULL_SHARE = 0.2
"""The share of natural rows that a document cut at the sequence length fills."""

_BUDGET_STEP = 64
_ALIKE = 32


@dataclass(frozen=True)
class Rows:
    """The same rows for every arm, shortest first; ids are [batch, seq], padded at the end."""

    lengths: list[int]
    input_ids: Tensor
    token_type_ids: Tensor
    labels: Tensor
    next_sentence: Tensor

    @property
    def num_predictions(self) -> int:
        """Masked tokens of all rows."""
        return int((self.labels != IGNORE_INDEX).sum())

    @property
    def num_tokens(self) -> int:
        """Real tokens of all rows."""
        return sum(self.lengths)

    @property
    def sequence_length(self) -> int:
        """Places of a padded row."""
        return self.input_ids.shape[1]

    @property
    def counts(self) -> dict[str, int]:
        """What the loss of the whole step is divided by."""
        return {"num_predictions": self.num_predictions, "num_rows": len(self.lengths)}


def natural_lengths(count: int, sequence_length: int) -> IntArray:
    """Lengths that spread as those of Wikipedia's documents in rows do, half full on average.

    A fifth of them are full, the rest beta(1.2, 2) times the sequence length: many short ones. The
    mean of NVIDIA's Wikipedia set for MLPerf is 254.5 of 512. They are the quantiles of a seeded
    draw, so that the mean hardly depends on their number; ascending, int64 [R].
    """
    full = round(FULL_SHARE * count)
    drawn = np.sort(np.random.default_rng(1).beta(1.2, 2.0, 64 * (count - full)))[32::64]
    lengths = np.full(count, sequence_length)
    lengths[: count - full] = np.clip(np.rint(drawn * sequence_length), SHORTEST, sequence_length)
    return lengths


def rows_for(tokens: int, sequence_length: int, *, natural: bool) -> int:
    """How many rows hold about so many real tokens; dividable into equal micro-batches."""
    rows = round((2 if natural else 1) * tokens / sequence_length)
    return max(1, rows if rows < _ALIKE else round(rows / _ALIKE) * _ALIKE)


def make_rows(vocab_size: int, batch: int, sequence_length: int, *, natural: bool) -> Rows:
    """Random rows, seeded, of full or of `natural_lengths`."""
    random = np.random.default_rng(1)
    lengths = natural_lengths(batch, sequence_length)
    if not natural:
        lengths = np.full(batch, sequence_length)
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


def ragged_batch(rows: Rows) -> PretrainingBatch:
    """All rows end to end, real tokens only: what our loader hands a CPU."""
    return collation.ragged(_end_to_end(rows, range(len(rows.lengths))))


def padded_batches(rows: Rows, parts: int) -> list[PretrainingBatch]:
    """The rows dealt out like cards among so many batches, each row in a whole one of places."""
    dealt = [_end_to_end(rows, mine) for mine in _dealt(rows, parts)]
    return [
        collation.static_padded(
            mine,
            num_rows=len(mine.lengths),
            sequence_length=rows.sequence_length,
            predictions=max(len(each.masked.positions) for each in dealt),
            pad_id=0,
        )
        for mine in dealt
    ]


def packed_bins(rows: Rows, parts: int) -> list[PretrainingBatch]:
    """The rows in so many bins of one token budget and one shape, as our loader packs for CUDA.

    The budget is the least multiple of 64 that holds them; how many rows and predictions a bin has
    room for follows from it as in `BatchSource`, slack included.
    """
    lengths, longest = np.array(rows.lengths), rows.sequence_length
    budget = max(-(-rows.num_tokens // (parts * _BUDGET_STEP)) * _BUDGET_STEP, longest)
    while True:
        max_rows = max(4 * budget // longest, 1)
        bins = pack(lengths, token_budget=budget, rows_per_bin=max_rows, at_least=parts)
        if len(bins) == parts:
            break
        budget += _BUDGET_STEP
    return [
        collation.static_packed(
            _end_to_end(rows, mine.tolist()),
            token_budget=budget,
            max_rows=max_rows,
            max_length=longest,
            predictions=int(budget * MASKED_SHARE + max_rows / 2),
        )
        for mine in bins
    ]


def their_inputs(rows: Rows, parts: int, *, pairs: bool = True) -> list[dict[str, Any]]:
    """What transformers' model is called with, a part of the rows each, dealt out like cards.

    Segments and whether they follow one another are for a model of `pairs` alone.

    There is no mask where nothing is padding, which lets it use its fastest attention. All parts
    have the same number of rows, and all but the same number of predictions.
    """
    real = torch.arange(rows.sequence_length) < torch.tensor(rows.lengths).unsqueeze(1)
    return [
        {
            "input_ids": rows.input_ids[mine],
            "attention_mask": None if real.all() else real[mine].long(),
            "labels": rows.labels[mine],
            **(
                {
                    "token_type_ids": rows.token_type_ids[mine],
                    "next_sentence_label": rows.next_sentence[mine],
                }
                if pairs
                else {}
            ),
        }
        for mine in _dealt(rows, parts)
    ]


def _dealt(rows: Rows, parts: int) -> list[list[int]]:
    """The rows of each part: dealt from the left and from the right in turns, so as to be alike."""
    if len(rows.lengths) % parts:
        raise ValueError(f"{len(rows.lengths)} rows do not make {parts} equal parts")
    deals = np.arange(len(rows.lengths)).reshape(-1, parts)
    deals[1::2] = deals[1::2, ::-1]
    return deals.T.tolist()


def _end_to_end(rows: Rows, chosen: Sequence[int]) -> collation.Rows:
    """These rows in this order as our loader has them before it lays them out."""
    order = list(chosen)
    lengths = np.array(rows.lengths)[order]
    real = np.arange(rows.sequence_length) < lengths[:, None]
    labels = rows.labels.numpy()[order]
    flat = labels[real]
    positions = np.flatnonzero(flat != IGNORE_INDEX)
    return collation.Rows(
        lengths,
        rows.token_type_ids.numpy()[order][real],
        MaskedRows(
            rows.input_ids.numpy()[order][real],
            positions,
            flat[positions],
            (labels != IGNORE_INDEX).sum(1),
        ),
        rows.next_sentence.numpy()[order],
    )


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
            for inputs in their_inputs(task.rows, parts, pairs=has_pairs(task.config))
        ]
        losses = [_autocast(partial(run, inputs), task) for inputs in placed]
        return Trial(model, losses, _optimizer(model))

    return Contestant(name, is_peer=True, compiled=mode is not None, build=build)


def our_model(config: ModelConfig, device: torch.device) -> Bert:
    """A fresh model of ours, the same each time."""
    torch.manual_seed(0)
    return Bert.for_pretraining(config, next_sentence=has_pairs(config)).to(device)


def has_pairs(config: ModelConfig) -> bool:
    """Whether the model reads pairs, and is asked whether the second follows the first."""
    return not isinstance(config, ModernConfig)


def their_model(config: ModelConfig, attention: str, device: torch.device) -> nn.Module:
    """Transformers' model with the weights of `our_model`."""
    if isinstance(config, ModernConfig):
        return _their_modern_model(config, attention, device)
    from transformers import BertConfig, BertForPreTraining

    values = config.model_dump(exclude={"position_embedding"})
    theirs = BertForPreTraining._from_config(BertConfig(**values), attn_implementation=attention)
    state = BERT.to_theirs(our_model(config, torch.device("cpu")).state_dict())
    # Theirs has the tied weights under a second name each.
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    theirs.load_state_dict(state)
    return nn.Module.to(theirs, device)


def _their_modern_model(config: ModernConfig, attention: str, device: torch.device) -> nn.Module:
    """Projects masked tokens alone, as ours does."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    theirs = ModernBertForMaskedLM._from_config(
        ModernBertConfig(**MODERN_BERT.write_config(config), sparse_prediction=True),
        attn_implementation=attention,
    )
    state = MODERN_BERT.to_theirs(our_model(config, torch.device("cpu")).state_dict())
    state["decoder.weight"] = state["model.embeddings.tok_embeddings.weight"]
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

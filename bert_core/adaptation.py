"""The model that pre-training continues from: its heads, positions and new word pieces."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.model.bert import Bert, MaskedTokenHead
from bert_core.model.encoder import Embeddings, SinusoidalPositions
from bert_core.model_folder import load_model_folder
from bert_core.new_pieces import old_pieces
from bert_core.special_tokens import num_embeddings

PositionExtension = Literal["cyclic", "interpolate"]


@dataclass(frozen=True)
class StartModel:
    """A model to continue from, and what of it is new: heads that were drawn, and rows of pieces.

    Rows of the word pieces from `first_new_row` on are new, if there are any.
    """

    model: Bert
    drawn_heads: tuple[str, ...]
    first_new_row: int


def load_start_model(
    folder: Path,
    *,
    heads: Sequence[str],
    changes: Mapping[str, Any] | None = None,
    num_positions: int | None = None,
    extension: PositionExtension = "cyclic",
    tokenizer: Tokenizer | None = None,
    token_counts: np.ndarray | None = None,
) -> StartModel:
    """Loads a model folder to continue its pre-training, with these heads of `HEADS`, in order.

    `changes` are fields of `ModelConfig` to have other than in the folder, such as dropout;
    `num_positions` those of a longer position table, `tokenizer` one with more word pieces, for
    which the model gets rows. Missing heads are drawn from torch's generator: seed it for a
    repeatable start. With `token_counts` [vocabulary], of the text to train on, the bias of a head
    over the vocabulary that was drawn says how frequent tokens are: no steps go into learning that.
    Raises `ModelFolderError` as `load_model_folder` does.
    """
    _, model, own = load_model_folder(folder, changes=changes, draws=True)
    drawn = tuple(model.add_missing_heads(heads))
    model.heads = nn.ModuleDict({name: model.heads[name] for name in heads})
    if num_positions is not None:
        extend_positions(model, num_positions, extension)
    if tokenizer is not None:
        extend_vocabulary(model, own, tokenizer)
    for head in (model.heads[name] for name in drawn):
        if token_counts is not None and isinstance(head, MaskedTokenHead):
            counts = F.pad(torch.from_numpy(token_counts), (0, len(head.bias) - len(token_counts)))
            head.bias.data.copy_(((counts + 1.0) / (counts + 1.0).sum()).log())
    return StartModel(model, drawn, num_embeddings(own))


def train_new_rows(
    start: StartModel, optimizer: torch.optim.Optimizer, is_time: Callable[[], bool]
) -> None:
    """While it is time, lets the optimizer change only rows of new pieces and heads just drawn.

    All else is as if it had no gradient in such a step: weights, moments and counts of steps stay.
    Gradients are clipped before that, by the norm of all of them.
    """
    model, first = start.model, start.first_new_row
    tables: set[Tensor] = {model.encoder.embeddings.word.weight}
    drawn: set[Tensor] = set()
    for name, head in model.heads.items():
        if name in start.drawn_heads:
            drawn.update(head.parameters())
        elif isinstance(head, MaskedTokenHead):
            tables |= {head.bias} if head.decoder is None else {head.bias, head.decoder.weight}
    kept: dict[Tensor, Tensor] = {}

    def before(*_: object) -> None:
        if not is_time():
            return
        for weight in model.parameters():
            if weight in tables and weight.grad is not None:
                weight.grad[:first] = 0
                kept[weight] = weight.detach()[:first].clone()  # for weight decay moves them too
            elif weight not in drawn:
                weight.grad = None

    def after(*_: object) -> None:
        with torch.no_grad():
            for weight, rows in kept.items():
                weight[:first] = rows
        kept.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def extend_positions(model: Bert, num_positions: int, extension: PositionExtension) -> None:
    """Gives the model a position table of at least as many rows, [num_positions, H], in place.

    `cyclic` repeats the table from its first row on, as Longformer's conversion does (Beltagy et
    al. 2020, section 5): positions within the old length stay what they were. `interpolate`
    stretches it linearly, first and last row staying first and last. Sinusoidal and rotary
    positions go on as their formula says.
    """
    embeddings, before = model.encoder.embeddings, model.config.max_position_embeddings
    if num_positions < before:
        raise ValueError(f"{num_positions} positions are fewer than the {before} before")
    if isinstance(embeddings, Embeddings) and num_positions > before:
        table = embeddings.position
        if isinstance(table, SinusoidalPositions):
            embeddings.position = SinusoidalPositions(num_positions, table.weight.shape[1])
        else:
            rows = _extended(table.weight.detach(), num_positions, extension)
            embeddings.position = nn.Embedding.from_pretrained(rows, freeze=False)
    model.encoder.config = model.config.model_copy(
        update={"max_position_embeddings": num_positions}
    )


def _extended(table: Tensor, num_rows: int, extension: PositionExtension) -> Tensor:
    if extension == "cyclic":
        return table[torch.arange(num_rows) % len(table)]
    columns = table.t().unsqueeze(0)  # [1, H, rows]
    stretched = F.interpolate(columns, size=num_rows, mode="linear", align_corners=True)
    return stretched[0].t().contiguous()


def extends(tokenizer: Tokenizer, old: Tokenizer) -> bool:
    """Whether a tokenizer has all pieces of an older one under their ids, and divides texts alike.

    Then each text without a new piece has the same ids.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    known = old.get_vocab(with_added_tokens=True)
    if any(vocabulary.get(piece) != index for piece, index in known.items()):
        return False
    parts = ("normalizer", "pre_tokenizer")
    new_state, old_state = json.loads(tokenizer.to_str()), json.loads(old.to_str())
    return all(new_state[part] == old_state[part] for part in parts)


@torch.no_grad()
def extend_vocabulary(model: Bert, old: Tokenizer, new: Tokenizer) -> int:
    """Gives the model a row for each piece that only the new tokenizer has, in place.

    A row is the mean of the rows of what the piece was cut into before, scaled to their mean norm:
    a mean of several is shorter than they are. The bias of a head over the vocabulary is the mean
    of theirs. Returns how many pieces are new; rows that no piece has are left as they are.
    """
    first, size = num_embeddings(old), num_embeddings(new)
    vocabulary = new.get_vocab(with_added_tokens=True)
    cut = {index: old_pieces(old, piece) for piece, index in vocabulary.items() if index >= first}
    encoder = model.encoder
    num_rows = max(size, model.config.vocab_size)
    encoder.embeddings.word = nn.Embedding.from_pretrained(
        _with_rows(encoder.embeddings.word.weight, num_rows, cut), freeze=False
    )
    encoder.config = model.config.model_copy(update={"vocab_size": num_rows})
    for head in model.heads.values():
        if isinstance(head, MaskedTokenHead):
            bias = _with_rows(head.bias.unsqueeze(1), num_rows, cut, scaled=False)
            head.bias = nn.Parameter(bias.squeeze(1))
            if head.decoder is not None:
                head.decoder.weight = nn.Parameter(_with_rows(head.decoder.weight, num_rows, cut))
                head.decoder.out_features = num_rows
    return len(cut)


def _with_rows(
    table: Tensor, num_rows: int, cut: Mapping[int, Sequence[int]], *, scaled: bool = True
) -> Tensor:
    """A table of so many rows, those of `cut` made of the rows that each names."""
    extended = table.new_zeros(num_rows, table.shape[1])
    extended[: len(table)] = table
    for index, parts in cut.items():
        rows = table[list(parts)]
        mean = rows.mean(0)
        norm = mean.norm()
        scale = rows.norm(dim=1).mean() / norm if scaled and norm > 0 else 1.0
        extended[index] = mean * scale
    return extended

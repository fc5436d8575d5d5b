"""The model that pre-training continues from: its heads, its positions, its hash."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.disk import file_sha256
from bert_core.model.bert import Bert
from bert_core.model.encoder import SinusoidalPositions
from bert_core.model_folder import CONFIG, load_model_folder, weight_files

PositionExtension = Literal["cyclic", "interpolate"]


@dataclass(frozen=True)
class StartModel:
    """A loaded start model.

    It has the heads that training needs and no other; `fresh_heads` were not in the folder and are
    drawn, `unused_heads` were there and are left out.
    """

    model: Bert
    tokenizer: Tokenizer
    fresh_heads: list[str]
    unused_heads: list[str]


def load_start_model(
    folder: Path,
    *,
    heads: Sequence[str],
    changes: Mapping[str, Any] | None = None,
    num_positions: int | None = None,
    extension: PositionExtension = "cyclic",
) -> StartModel:
    """Loads a model folder to continue its pre-training, with these heads of `HEADS`, in order.

    `changes` are fields of `ModelConfig` to have other than in the folder, such as dropout;
    `num_positions` those of a longer position table. Missing heads are drawn from torch's
    generator: seed it for a repeatable start. Raises `ModelFolderError` as `load_model_folder`
    does.
    """
    _, model, tokenizer = load_model_folder(folder, changes=changes)
    unused = [name for name in model.heads if name not in heads]
    fresh = model.add_missing_heads(heads)
    model.heads = nn.ModuleDict({name: model.heads[name] for name in heads})
    if num_positions is not None:
        extend_positions(model, num_positions, extension)
    return StartModel(model, tokenizer, fresh, unused)


def extend_positions(model: Bert, num_positions: int, extension: PositionExtension) -> None:
    """Gives the model a position table of at least as many rows, [num_positions, H], in place.

    `cyclic` repeats the table from its first row on, as Longformer's conversion does (Beltagy et
    al. 2020, section 5): positions within the old length stay what they were. `interpolate`
    stretches it linearly, first and last row staying first and last. Sinusoidal positions go on as
    their formula says.
    """
    embeddings = model.encoder.embeddings
    table = embeddings.position
    if num_positions < len(table.weight):
        raise ValueError(f"{num_positions} positions are fewer than the {len(table.weight)} before")
    if isinstance(table, SinusoidalPositions):
        embeddings.position = SinusoidalPositions(num_positions, table.weight.shape[1])
    elif num_positions > len(table.weight):
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


def content_hash(folder: Path) -> str:
    """The sha256, in hex, of a model folder's weights and configuration, whatever its name."""
    files = {path.name: file_sha256(path) for path in [folder / CONFIG, *weight_files(folder)]}
    listed = "\n".join(f"{digest}  {name}" for name, digest in sorted(files.items()))
    return hashlib.sha256(listed.encode()).hexdigest()

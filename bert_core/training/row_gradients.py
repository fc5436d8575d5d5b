"""Gradients of large embedding tables on a CPU: of the rows a batch touched, not of the table.

torch's backward pass fills a fresh table with zeros for the few hundred rows that a batch touches,
clipping reads all of them and the next step gives the memory back. For 30,522 words of width 384
that is 7 % of a step of fine-tuning. Here the table of zeros is kept, and only its touched rows
change.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

LARGE_TABLE = 4_096
"""Rows from which on a table is worth it."""


@dataclass
class _Table:
    """A table's parameter, its gradient as the optimizer sees it, and the rows that are not 0."""

    weight: Tensor
    gradient: Tensor | None = None
    rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class RowGradients:
    """The gradients of a model, some of them in rows until they are `spread`.

    Where a table has a second use, as in pre-training, its gradient touches every row; it then
    comes as usual.
    """

    def __init__(self, model: nn.Module, *, wanted: bool) -> None:
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._large = _large_tables(model) if wanted else []
        self._tables = [_Table(each.weight) for each in self._large]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within this context backward passes leave gradients in rows, where they are wanted."""
        for table in self._large:
            table.sparse = True
        try:
            yield
        finally:
            for table in self._large:
                table.sparse = False

    def clip(self, max_norm: float) -> Tensor:
        """Scales all gradients so that their norm is at most this; returns what it was, 0-d."""
        if not any(_is_in_rows(table.weight) for table in self._tables):
            return nn.utils.clip_grad_norm_(self._parameters, max_norm)
        gradients = [_values(each) for each in self._parameters if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # As `clip_grad_norm_` of torch has it, which does not know gradients in rows.
        scale = max_norm / (norm + 1e-6)
        if scale < 1:
            for gradient in gradients:
                gradient.mul_(scale)
        return norm

    def spread(self) -> None:
        """Gives the optimizer whole tables."""
        for table in self._tables:
            if not _is_in_rows(table.weight):
                continue
            if table.gradient is None:
                table.gradient = torch.zeros_like(table.weight)
            else:
                table.gradient.index_fill_(0, table.rows, 0)
            values = _values(table.weight)
            table.rows = _gradient(table.weight).indices()[0]
            table.weight.grad = table.gradient.index_copy_(0, table.rows, values)


def _is_in_rows(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def _values(parameter: Tensor) -> Tensor:
    """The gradient's entries: each touched row once, where it is in rows."""
    gradient = _gradient(parameter)
    if gradient.is_sparse:
        parameter.grad = gradient.coalesce()
        return _gradient(parameter).values()
    return gradient


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _large_tables(model: nn.Module) -> list[nn.Embedding]:
    return [
        each
        for each in model.modules()
        if isinstance(each, nn.Embedding) and each.num_embeddings >= LARGE_TABLE
    ]

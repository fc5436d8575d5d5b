"""Optimizers, the learning rate as a function of the step, clipping of gradients."""

# pyright: reportPrivateImportUsage=false
# torch's operations on lists of tensors have no public names; its own optimizers use these.

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor, nn

from bert_core.settings import OptimizerSettings


@dataclass(frozen=True)
class _Step:
    """What a step would do to some parameters: their gradients, and their updates by Adam.

    `roots` are those of the mean squared gradients.
    """

    parameters: list[Tensor]
    gradients: list[Tensor]
    roots: list[Tensor]
    updates: list[Tensor]
    weight_decay: float


class _ScaledAdam(torch.optim.Optimizer):
    """Adam's update of each parameter, times a ratio of its own, which a subclass says.

    All arithmetic stays on the device: a step never waits for it. On an accelerator an operation
    is one kernel for all tensors of a group, but for the last, in which each weight has its ratio.
    """

    def __init__(
        self,
        params: Any,  # noqa: ANN401 - torch's ParamsT: parameters or group dictionaries
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Makes one update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                trained = [weight for weight in group["params"] if weight.grad is not None]
                for parameters in updated_at_once(trained):
                    self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        states = [self._state_of(weight) for weight in parameters]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        for state in states:
            state["step"] += 1
        steps = [int(state["step"]) for state in states]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        ratios = self._ratios(
            _Step(parameters, gradients, list(roots), list(updates), group["weight_decay"])
        )
        if ratios is None:
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
        else:
            torch._foreach_addcmul_(parameters, updates, ratios, value=-group["lr"])

    def _ratios(self, step: _Step) -> list[Tensor] | None:
        """The ratio of each parameter, 0-d; None where all are 1."""
        raise NotImplementedError

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:  # the names torch.optim.AdamW uses, so that one checkpoint format serves all
            state["step"] = torch.tensor(0.0)  # on the host: reading it waits for no device
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


class Lamb(_ScaledAdam):
    """LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2), with phi the identity.

    Groups without weight decay (biases, layer norms) take the plain Adam update with no trust
    ratio, as in the authors' released code and NVIDIA's; the paper's algorithm makes no such
    exception. The global gradient norm is clipped by the loop, as NVIDIA's version does inside.
    """

    def _ratios(self, step: _Step) -> list[Tensor] | None:
        """Norm of each weight over the norm of its update; 1 where either norm is 0."""
        if not step.weight_decay:
            return None
        weights = torch.stack(list(torch._foreach_norm(step.parameters)))
        changes = torch.stack(list(torch._foreach_norm(step.updates)))
        known = (weights > 0) & (changes > 0)
        return list(torch.where(known, weights / changes, torch.ones_like(weights)).unbind())


class StableAdamW(_ScaledAdam):
    """AdamW with clipped updates (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2).

    Where the gradient of a weight has grown faster than the mean of its squares knows, its update
    is divided by how much, as AdaFactor does (Shazeer and Stern 2018, arXiv 1804.04235, section 6).
    """

    def _ratios(self, step: _Step) -> list[Tensor] | None:
        """One over the root mean square of gradients by their roots, where that is above 1."""
        relative = torch._foreach_norm(torch._foreach_div(step.gradients, step.roots))
        sizes = [max(weight.numel(), 1) ** 0.5 for weight in step.parameters]
        measured = torch.stack([norm / size for norm, size in zip(relative, sizes, strict=True)])
        return list((1 / measured.clamp(min=1)).unbind())


def updated_at_once(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """The parameters in the lists in which they are updated.

    On a CPU each stands alone: nothing is saved by fewer calls, and a tensor that has just been
    written is still in the cache for the next operation.
    """
    on_cpu = [[weight] for weight in parameters if weight.device.type == "cpu"]
    others = [weight for weight in parameters if weight.device.type != "cpu"]
    return [*on_cpu, others] if others else on_cpu


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
        self._parameters = [weight for weight in model.parameters() if weight.requires_grad]
        self._large = _large_tables(model) if wanted else []
        self._tables = [_Table(table.weight) for table in self._large]

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
        gradients = [_values(weight) for weight in self._parameters if weight.grad is not None]
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
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings >= LARGE_TABLE
    ]


def linear_schedule(step: int, *, total_steps: int, warmup_steps: int) -> float:
    """Multiplier of the peak learning rate for the step after `step` finished ones.

    Rises linearly and is 1 in the last warm-up step, then falls linearly to reach 0 at
    `total_steps` (Devlin et al. 2018, A.2): no step that is made has a rate of 0. One schedule
    spans all phases of a run.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if step >= total_steps:
        return 0.0
    return (total_steps - step) / (total_steps - warmup_steps)


def stable_schedule(step: int, *, total_steps: int, warmup_steps: int, decay_steps: int) -> float:
    """Multiplier of the peak learning rate that stays 1 between warm-up and a linear decay.

    "Warmup-stable-decay" (Hu et al. 2024, arXiv 2404.06395): the checkpoints of the stable part do
    not depend on the length of the run, so several runs may end from one of them.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return max(0.0, min(1.0, (total_steps - step) / decay_steps))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two optimizer groups in the model's own order: with weight decay, then without.

    Biases and layer norms carry no decay (Devlin et al. 2018, A.2); these are the parameters of
    fewer than two dimensions. A tied weight appears once, under its first name.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


SCALED: dict[str, type[_ScaledAdam]] = {"lamb": Lamb, "stableadamw": StableAdamW}
RATE_SHARE = "rate_share"
"""In a group of parameters: its share of the learning rate of a step, where it has one."""


def create_optimizer(
    model: nn.Module,
    settings: OptimizerSettings,
    groups: list[dict[str, Any]] | None = None,
) -> torch.optim.Optimizer:
    """The optimizer `settings` name, at the peak learning rate; call after the move to a device.

    `groups` are of all parameters that learn, by default those of `parameter_groups`. AdamW
    corrects Adam's bias, which the original code does not: see docs/decisions.md.
    """
    groups = groups or parameter_groups(model, settings.weight_decay)
    betas = (settings.beta1, settings.beta2)
    if settings.name in SCALED:
        scaled = SCALED[settings.name]
        return scaled(groups, lr=settings.peak_learning_rate, betas=betas, eps=settings.epsilon)
    # The fused kernel exists for these two; elsewhere torch picks its own form.
    fused = True if next(model.parameters()).device.type in ("cpu", "cuda") else None
    return torch.optim.AdamW(
        groups, lr=settings.peak_learning_rate, betas=betas, eps=settings.epsilon, fused=fused
    )

"""A model and `OptimizerSettings` go in; an AdamW or LAMB optimizer comes out.

The learning rate is a pure function of the step, `linear_schedule`; the loop sets it.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn

from bert_core.training.settings import OptimizerSettings


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


def create_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer `settings` name, at the peak learning rate; call after the move to a device.

    AdamW corrects Adam's bias, which the original code does not: see docs/decisions.md.
    """
    groups = parameter_groups(model, settings.weight_decay)
    betas = (settings.beta1, settings.beta2)
    if settings.name == "lamb":
        return Lamb(groups, lr=settings.peak_learning_rate, betas=betas, eps=settings.epsilon)
    # The fused kernel exists for these two; elsewhere torch picks its own form.
    fused = True if next(model.parameters()).device.type in ("cpu", "cuda") else None
    return torch.optim.AdamW(
        groups, lr=settings.peak_learning_rate, betas=betas, eps=settings.epsilon, fused=fused
    )


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2), with phi the identity.

    Groups without weight decay (biases, layer norms) take the plain Adam update with no trust
    ratio, as in the authors' released code and NVIDIA's; the paper's algorithm makes no such
    exception. The global gradient norm is clipped by the loop, as NVIDIA's version does inside.
    All arithmetic stays on the device: a step never waits for it.
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
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:  # the names torch.optim.AdamW uses, so that one checkpoint format serves both
            state["step"] = torch.tensor(0.0)  # on the host: reading it waits for no device
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        step = int(state["step"])
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        update = (mean / (1 - beta1**step)).div_(root)
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
            update.mul_(_trust_ratio(parameter, update))
        parameter.add_(update, alpha=-group["lr"])


def _trust_ratio(parameter: Tensor, update: Tensor) -> Tensor:
    """Norm of the weight over the norm of its update, 0-d; 1 where either norm is 0."""
    weight, change = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(update)
    known = (weight > 0) & (change > 0)
    return torch.where(known, weight / change, torch.ones_like(weight))

"""A model and `OptimizerSettings` go in; an AdamW or LAMB optimizer comes out.

The learning rate is a pure function of the step, `linear_schedule`; the loop sets it.
"""

from typing import Any

import torch
from torch import nn

from bert_core.training.lamb import Lamb
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

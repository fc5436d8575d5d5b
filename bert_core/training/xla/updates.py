"""A torch optimizer and its moments go in; the same update in optax comes out, and back."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bert_core.training.lamb import Lamb
from bert_core.training.state_tensors import load_moments, moments_by_name

if TYPE_CHECKING:
    import optax


def transformation(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> "optax.GradientTransformation":
    """What makes an update of the gradients, by parameter name, at a learning rate of 1.

    Groups, betas, epsilon and weight decay are those of `optimizer`, which is AdamW or LAMB (see
    `bert_core.training.lamb`). Raises `TypeError` for another and `ValueError` for groups that
    differ in more than having weight decay.
    """
    import optax

    if not isinstance(optimizer, torch.optim.AdamW | Lamb):
        raise TypeError(f"no update in optax for {type(optimizer).__name__}")
    (beta1, beta2), epsilon = _shared(optimizer, "betas"), _shared(optimizer, "eps")
    decays = {group["weight_decay"] for group in optimizer.param_groups} - {0.0}
    if len(decays) > 1:
        raise ValueError(f"several weight decays: {sorted(decays)}")
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed = {
        names[parameter]: group["weight_decay"] != 0
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parts = [
        optax.scale_by_adam(beta1, beta2, epsilon),
        optax.add_decayed_weights(decays.pop() if decays else 0.0, mask=decayed),
    ]
    if isinstance(optimizer, Lamb):
        parts.append(optax.masked(optax.scale_by_trust_ratio(), decayed))
    return optax.chain(*parts)


def with_moments(fresh: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:  # noqa: ANN401
    """The fresh state of `transformation`, numbers of the host, with torch's moments in it.

    Raises `ValueError` where parameters have made different numbers of steps.
    """
    moments = moments_by_name(model, optimizer)
    if not moments:
        return fresh
    adam = fresh[0]
    steps = {int(value) for name, value in moments.items() if name.endswith(".step")}
    if len(moments) != 3 * len(adam.mu) or len(steps) != 1:
        raise ValueError("parameters have made different numbers of steps")
    return (
        adam._replace(
            count=np.int32(steps.pop()),
            mu={name: moments[f"{name}.exp_avg"].numpy() for name in adam.mu},
            nu={name: moments[f"{name}.exp_avg_sq"].numpy() for name in adam.nu},
        ),
        *fresh[1:],
    )


def bring_back(
    weights: Mapping[str, Any],
    moments: Any,  # noqa: ANN401
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Copies weights and moments, arrays of JAX, into a torch model and its optimizer."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(_tensor(weight))
    adam = moments[0]
    if count := int(adam.count):
        found = {f"{name}.step": torch.tensor(float(count)) for name in weights}
        found |= {f"{name}.exp_avg": _tensor(value) for name, value in adam.mu.items()}
        found |= {f"{name}.exp_avg_sq": _tensor(value) for name, value in adam.nu.items()}
        load_moments(model, optimizer, found)


def _tensor(array: Any) -> torch.Tensor:  # noqa: ANN401
    """A copy on the CPU, of what this process holds of the array: all of it."""
    return torch.from_numpy(np.array(array))


def _shared(optimizer: torch.optim.Optimizer, name: str) -> Any:  # noqa: ANN401
    values = [group[name] for group in optimizer.param_groups]
    if any(value != values[0] for value in values):
        raise ValueError(f"groups of different {name}: {values}")
    return values[0]

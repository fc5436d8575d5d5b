"""Dropout that is cheap on every device: a mask of 16 random bits a place on the CPU.

torch draws its own CPU mask serially, one Bernoulli number a place, which costs more than the
products around it in a small model.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_LEVELS = 65_536


def is_eager_cpu(tensor: Tensor) -> bool:
    """Whether the operations written for the CPU apply: not when compiled, traced or autocast."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def keep_probability(dropout: float) -> float:
    """The share of places that `keep_mask` keeps: 1 - dropout, to the nearest of 65,536 levels."""
    return 1 - round(dropout * _LEVELS) / _LEVELS


def keep_mask(shape: tuple[int, ...], dropout: float, dtype: torch.dtype) -> Tensor:
    """Draws 1 for a place to keep and 0 for one to drop, on the CPU.

    A function of torch's generator, from which one seed is drawn, whatever the number of threads.
    """
    seed = int(torch.randint(2**63 - 1, ()))
    num_places = int(np.prod(shape))
    words = np.random.SFC64(seed).random_raw(-(-num_places // 4))
    bits = torch.from_numpy(words.view(np.int16))[:num_places].view(shape)
    threshold = round(dropout * _LEVELS) - _LEVELS // 2
    # The comparison writes the float mask itself: a boolean one would cost a pass to convert.
    return torch.ge(bits, threshold, out=torch.empty(shape, dtype=dtype))


def dropout(states: Tensor, probability: float, training: bool) -> Tensor:
    """Zeroes places with this probability and scales the rest so that the mean stays."""
    if not training or probability == 0:
        return states
    if not is_eager_cpu(states):
        return F.dropout(states, probability)
    return states * _scaled_mask(states, probability)


def add_dropout(residual: Tensor, states: Tensor, probability: float, training: bool) -> Tensor:
    """`residual + dropout(states)`, in one pass on the CPU."""
    if not training or probability == 0 or not is_eager_cpu(states):
        return residual + dropout(states, probability, training)
    return torch.addcmul(residual, states, _scaled_mask(states, probability))


def _scaled_mask(states: Tensor, probability: float) -> Tensor:
    mask = keep_mask(tuple(states.shape), probability, states.dtype)
    return mask.mul_(1 / keep_probability(probability))

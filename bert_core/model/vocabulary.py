"""Projection onto the vocabulary and its cross entropy: the largest product of a model.

Shapes: P predicted positions, H hidden size, V vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX

_TENSOR_CORE_COLUMNS = 64
"""CUDA multiplies matrices fastest where their sides are multiples of it."""


def vocabulary_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Cross entropy of `features @ weight.T + bias` against `labels`, and how many are right.

    `features` is [P, H], `weight` [V, H], `bias` [V], `labels` int64 [P] with IGNORE_INDEX where a
    place carries none. Gives the sum over labels divided by `count`, and the number of labels
    that have the highest logit.
    """
    multiple = _TENSOR_CORE_COLUMNS if features.device.type == "cuda" else 1
    logits = project(features, weight, bias, multiple)
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum") / count
    return loss, (logits.detach().argmax(-1) == labels).sum()


def project(features: Tensor, weight: Tensor, bias: Tensor, multiple: int) -> Tensor:
    """Logits [P, V], computed with words of zeros after the last up to a multiple of so many."""
    missing = -weight.shape[0] % multiple
    if not missing:
        return F.linear(features, weight, bias)
    padded = F.linear(features, F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing)))
    return padded.narrow(1, 0, weight.shape[0])

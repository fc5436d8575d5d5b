"""The cross entropy of labels, where some are rare, easy, or not to be trusted altogether.

Shapes: P places, L labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError, nearest
from bert_core.settings import LabelLossSettings

_SUREST = 1e-7


@dataclass(frozen=True)
class LabelLoss:
    """How much each decision counts.

    - `weights` [L]: of a label that excludes the others, how much each of its examples counts; of
      labels that do not, how much more than its absence its presence counts; None: alike
    - `focal_gamma`: a decision of probability p counts (1 - p)^gamma times (Lin et al. 2017,
      arXiv 1708.02002)
    - `label_smoothing`: this share of the probability belongs to all labels alike (Szegedy et al.
      2016, arXiv 1512.00567)
    """

    weights: Tensor | None = None
    focal_gamma: float = 0.0
    label_smoothing: float = 0.0

    @classmethod
    def of(
        cls, settings: LabelLossSettings, labels: Sequence[str], answers: npt.NDArray[Any]
    ) -> Self:
        """What the settings say, for the answers of all training rows: [P] int64, or [P, L].

        Balanced weights make all labels count alike. Raises `UserError` for a weight of a label
        that there is not.
        """
        given, weights = settings.class_weights, None
        if isinstance(given, dict):
            check_weights(given, labels)
            weights = [float(given.get(label, 1.0)) for label in labels]
        elif given == "balanced":
            weights = balanced_weights(answers, len(labels)).tolist()
        tensor = None if weights is None else torch.tensor(weights, dtype=torch.float32)
        return cls(tensor, settings.focal_gamma, settings.label_smoothing)

    def of_classes(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The summed cross entropy of `labels` [P], int64, IGNORE_INDEX where there is none."""
        weights = None if self.weights is None else self.weights.to(outputs.device)
        reduction = "none" if self.focal_gamma else "sum"
        found = F.cross_entropy(
            outputs,
            labels,
            weight=weights,
            ignore_index=IGNORE_INDEX,
            reduction=reduction,
            label_smoothing=self.label_smoothing,
        )
        if not self.focal_gamma:
            return found
        known = labels.clamp(min=0).unsqueeze(1)
        right = outputs.softmax(1).gather(1, known).squeeze(1)
        return (found * self._doubt(1 - right)).sum()

    def of_label_sets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The binary cross entropy of each label, [P, L]; `targets` are 0 or 1."""
        weights = None if self.weights is None else self.weights.to(outputs.device)
        smoothing = self.label_smoothing
        smoothed = targets * (1 - smoothing) + smoothing / 2 if smoothing else targets
        found = F.binary_cross_entropy_with_logits(
            outputs, smoothed, pos_weight=weights, reduction="none"
        )
        if not self.focal_gamma:
            return found
        wrong = torch.where(targets > 0.5, -outputs, outputs).sigmoid()
        return found * self._doubt(wrong)

    def _doubt(self, wrong: Tensor) -> Tensor:
        """What the focal loss multiplies by, of the probability of being wrong.

        That is 0 of a sure decision, where a power below 1 has an infinite slope: 0 * inf is NaN.
        """
        return wrong.clamp(min=_SUREST).pow(self.focal_gamma)


PLAIN = LabelLoss()
"""Every decision counts alike."""


def balanced_weights(answers: npt.NDArray[Any], num_labels: int) -> npt.NDArray[np.float64]:
    """Weights [L] with which all labels count alike; 1 for one that never occurs, or always does.

    Of labels that exclude each other [P] (int64, below 0 where there is none) the mean over all
    answers is 1: P / (L * count). Of label sets [P, L] (NaN where unknown) it is how many times
    as often a label is absent.
    """
    if answers.ndim == 1:
        counts = np.bincount(answers[answers >= 0], minlength=num_labels).astype(np.float64)
        seen = counts > 0
        return np.where(seen, counts.sum() / (seen.sum() * np.maximum(counts, 1)), 1.0)
    known = answers[~np.isnan(answers).any(axis=1)]
    present = known.sum(axis=0)
    occurs_sometimes = (present > 0) & (present < len(known))
    return np.where(occurs_sometimes, (len(known) - present) / np.maximum(present, 1), 1.0)


def check_weights(weights: dict[str, float], labels: Sequence[str]) -> None:
    """Raises `UserError` for a weight of a label that is not among `labels`."""
    for name in weights:
        if name not in labels:
            raise UserError(
                f"a weight of an unknown label{nearest(name, labels)}",
                f"--loss.class_weights {name}",
                f"the labels are {', '.join(labels)}",
            )

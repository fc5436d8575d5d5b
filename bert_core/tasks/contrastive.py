"""Losses between the vectors of texts: which belong together, and how near they are to each other.

A text's loss depends on the vectors of all others of its step, so it is computed over a whole step
at once. Shapes: U vectors of a step's texts, N examples, C candidates, H numbers of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from bert_core.interface import RelationKind
from bert_core.text.rng import IntArray


@dataclass(frozen=True)
class Groups:
    """How the texts of a step belong together, as numbers of its vectors.

    - `kind`, what the examples say
    - `queries` [N], and `positives` [N] among `candidates` [C], numbers of vectors that differ
    - `blocked` [N, C], candidates that are no wrong answers of a query, though not the one sought
    - `values` [N], the scores or the numbers of the classes; empty for other kinds
    """

    kind: RelationKind
    queries: Tensor
    positives: Tensor
    candidates: Tensor
    blocked: Tensor
    values: Tensor

    @classmethod
    def of(cls, kind: RelationKind, texts: Sequence[IntArray], values: npt.ArrayLike = ()) -> Self:
        """Of examples whose texts have these numbers of vectors: first the query, then passages.

        A passage that belongs to two examples of one query, or two queries of one passage, is no
        wrong answer of either, nor is a query of itself where it is a passage as well. Of a bare
        text the passage is another vector of the same text.
        """
        queries = np.array([each[0] for each in texts], dtype=np.int64)
        positives = np.array([each[min(1, len(each) - 1)] for each in texts], dtype=np.int64)
        others = [each[1:] for each in texts if len(each) > 1]
        candidates = np.unique(np.concatenate([positives, *others]))
        blocked = np.zeros((0, 0), dtype=bool)
        if kind in ("pairs", "texts"):
            sought = np.searchsorted(candidates, positives)
            same = queries[:, None] == queries[None, :]
            blocked = np.zeros((len(queries), len(candidates)), dtype=bool)
            rows, columns = np.nonzero(same)
            blocked[rows, sought[columns]] = True
            blocked |= queries[:, None] == candidates[None, :]
            blocked[np.arange(len(queries)), sought] = False
            positives = sought
        elif kind == "labels":
            candidates = queries
        return cls(
            kind=kind,
            queries=torch.from_numpy(queries),
            positives=torch.from_numpy(positives),
            candidates=torch.from_numpy(candidates),
            blocked=torch.from_numpy(blocked),
            values=torch.from_numpy(np.array(values, dtype=np.float64)),
        )


def contrastive_loss(
    vectors: Tensor, groups: Groups, *, scale: float, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The mean loss of a step, 0-d, and how many examples are right, 0-d; `vectors` are [U, H].

    Computed for the first numbers of each vector, as many as each of `sizes` says, and summed
    (Kusupati et al. 2022, arXiv 2205.13147); right is counted with all numbers. Cosines are
    multiplied by `scale`.

    - pairs and texts: the cross entropy of the passage among all of the step (van den Oord et al.
      2018, arXiv 1807.03748; Henderson et al. 2017, arXiv 1705.00652; of bare texts SimCSE, Gao et
      al. 2021, arXiv 2104.08821)
    - scores: every two pairs whose cosines are in the wrong order (CoSENT, Su 2022)
    - labels: the texts of one class against all others (Khosla et al. 2020, arXiv 2004.11362)
    """
    compute = {"scores": _cosent, "labels": _same_class}.get(groups.kind, _ranking)
    losses, right = [], vectors.new_zeros(())
    for size in dict.fromkeys([vectors.shape[1], *sizes]):
        found, correct = compute(F.normalize(vectors[:, :size].float(), dim=1), groups, scale)
        losses.append(found)
        right = correct if len(losses) == 1 else right
    return torch.stack(losses).sum(), right


def sparse_loss(
    weights: Tensor, groups: Groups, *, scale: float, of_queries: float, of_passages: float
) -> tuple[Tensor, Tensor]:
    """The mean loss of a step of pairs, 0-d, and how many are right, 0-d; `weights` are [U, V].

    The cross entropy of products, not cosines, and what keeps weights few and even: the squared
    mean weight of each word, summed, of queries and passages each with its share (FLOPS, Paria et
    al. 2020, arXiv 2004.05665; Formal et al. 2021, arXiv 2109.10086).
    """
    loss, right = _ranking(weights.float(), groups, scale)
    for texts, share in ((groups.queries, of_queries), (groups.candidates, of_passages)):
        loss = loss + share * weights[texts].float().mean(0).square().sum()
    return loss, right


def _ranking(vectors: Tensor, groups: Groups, scale: float) -> tuple[Tensor, Tensor]:
    scores = vectors[groups.queries] @ vectors[groups.candidates].T * scale
    scores = scores.masked_fill(groups.blocked, -torch.inf)
    right = (scores.detach().argmax(1) == groups.positives).sum()
    return F.cross_entropy(scores, groups.positives), right


def _cosent(vectors: Tensor, groups: Groups, scale: float) -> tuple[Tensor, Tensor]:
    cosines = (vectors[groups.queries] * vectors[groups.positives]).sum(1) * scale
    # [i, j]: by how much pair i is nearer than pair j, where it should be less near.
    wrong = cosines[:, None] - cosines[None, :]
    is_less = groups.values[:, None] < groups.values[None, :]
    differences = wrong.masked_fill(~is_less, -torch.inf).flatten()
    loss = torch.cat([differences.new_zeros(1), differences]).logsumexp(0)
    return loss, loss.new_zeros(())


def _same_class(vectors: Tensor, groups: Groups, scale: float) -> tuple[Tensor, Tensor]:
    texts = vectors[groups.queries]
    itself = torch.eye(len(texts), dtype=torch.bool, device=texts.device)
    same = (groups.values[:, None] == groups.values[None, :]) & ~itself
    scores = (texts @ texts.T * scale).masked_fill(itself, -torch.inf)
    logs = scores.log_softmax(1).masked_fill(itself, 0.0)
    counts = same.sum(1)
    each = -(logs * same).sum(1) / counts.clamp(min=1)
    right = same.gather(1, scores.detach().argmax(1, keepdim=True)).sum()
    return each.sum() / (counts > 0).sum().clamp(min=1), right

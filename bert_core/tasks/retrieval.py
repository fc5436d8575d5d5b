"""Exact search among vectors, and how good a ranking is.

Shapes: Q queries, D documents, K found, H numbers of a vector.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bert_core.text.rng import IntArray

FloatArray = npt.NDArray[np.float32]

DEPTH = 100
"""So many documents are found for a query, and measured."""

_CUTS = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "RR@10"}
_CUTS |= {f"recall_at_{count}": f"R@{count}" for count in (1, 10, DEPTH)}
_CELLS_AT_ONCE = 1 << 24
"""64 MB of scores."""

METRICS = tuple(_CUTS)
"""The metrics of a ranking, each of them 0 to 1."""


def normalized(vectors: FloatArray) -> FloatArray:
    """The vectors [N, H] with the length 1; one without length stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def nearest(
    queries: FloatArray, documents: FloatArray, count: int = DEPTH
) -> tuple[IntArray, FloatArray]:
    """The numbers of the `count` documents with the largest products, and these, best first.

    Both are [Q, K]; K is `count`, or D where there are fewer. Of equals the first is better. Scores
    are computed in blocks of queries, so memory does not grow with their number.
    """
    count = min(count, len(documents))
    numbers = np.empty((len(queries), count), dtype=np.int64)
    scores = np.empty((len(queries), count), dtype=np.float32)
    at_once = max(1, _CELLS_AT_ONCE // max(len(documents), 1))
    for begin in range(0, len(queries), at_once):
        block = queries[begin : begin + at_once] @ documents.T
        if count < len(documents):
            # All that reach the last score that counts are sorted, so equals at the edge are too.
            edge = np.partition(block, -count, axis=1)[:, -count]
        else:
            edge = np.full(len(block), -np.inf)
        for row, (found, lowest) in enumerate(zip(block, edge, strict=True), begin):
            some = np.flatnonzero(found >= lowest)
            best = some[np.argsort(-found[some], kind="stable")[:count]]
            numbers[row], scores[row] = best, found[best]
    return numbers, scores


def ranking_metrics(
    found: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, float]]
) -> list[dict[str, float]]:
    """`METRICS` of each query: the documents `found`, best first, and how relevant which are.

    Measured by trec_eval, through `ir_measures`; a relevance of 0 or less counts as none.
    """
    import ir_measures
    from ir_measures import Qrel, ScoredDoc

    names = {ir_measures.parse_measure(text): name for name, text in _CUTS.items()}
    judged = [
        Qrel(str(query), str(document), round(value))
        for query, values in enumerate(relevant)
        for document, value in values.items()
    ]
    ranked = [
        ScoredDoc(str(query), str(document), float(-place))
        for query, documents in enumerate(found)
        for place, document in enumerate(documents)
    ]
    values = [dict.fromkeys(METRICS, 0.0) for _ in found]
    for metric in ir_measures.iter_calc(list(names), judged, ranked):
        values[int(metric.query_id)][names[metric.measure]] = float(metric.value)
    return values

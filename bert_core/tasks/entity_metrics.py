"""Precision, recall and F1 of entities, and the share of words with the right tag.

Gold and predicted tags go in; what conlleval prints, computed by seqeval, comes out, in 0..1.
"""

from collections.abc import Sequence
from itertools import chain
from operator import eq
from typing import Any

import numpy as np

from bert_core.tasks.metrics import metric_parts
from bert_core.tasks.tag_schemes import OUTSIDE, Tags


def entity_metrics(
    gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], types: Sequence[str] = ()
) -> dict[str, float]:
    """Micro-averaged `precision`, `recall` and `f1`, `accuracy` by word, `f1_TYPE` by type.

    The types are written as `metric_parts` has them.

    An entity is right when its type and both its ends are. A sentence's tags may be in any scheme,
    gold and found in different ones, and are read as conlleval reads them. `accuracy` compares the
    tags as they are written, invalid ones too, as conlleval does: for it both have to be in one
    scheme. What is undefined counts as 0; so does a type of `types` that does not occur.
    """
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    # Both at once, so that they share the numbers of types.
    tags = Tags.of([*gold, *found])
    strings = np.array(tags.strings("iob2"), dtype=object)
    num_words = len(strings) // 2
    wanted, guessed = strings[:num_words], strings[num_words:]
    # Words outside of all entities do not count, and seqeval takes its time with each. Every
    # entity begins with B- now, so that none of them grow together where such words are left out.
    kept = (wanted != OUTSIDE) | (guessed != OUTSIDE)
    scores: list[Any] = [
        precision_recall_fscore_support(
            [wanted[kept].tolist()],
            [guessed[kept].tolist()],
            average=average,
            zero_division=0,  # pyright: ignore - seqeval types its default only
        )
        for average in ("micro", None)
    ]
    (precision, recall, f1, _), (_, _, f1_of_types, _) = scores
    # seqeval's order: the types that occur, sorted.
    occurring = (tags.type_names[index] for index in np.unique(tags.types[tags.inside]))
    by_type = dict.fromkeys(types, 0.0) | dict(zip(occurring, f1_of_types, strict=True))
    parts = metric_parts(by_type)
    return {
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "accuracy": float(np.mean([*map(eq, chain(*gold), chain(*found))])),
        **{f"f1_{parts[name]}": float(value) for name, value in sorted(by_type.items())},
    }

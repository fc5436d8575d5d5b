import numpy as np

from bert_core.evaluation.metrics import ClassCounts, class_counts, f1_of, ratio
from bert_core.evaluation.outcomes import outcomes


def test_things_of_a_class_add_up_within_an_example():
    gold = [[("PER", 1), ("PER", 2), ("LOC", 3)], []]
    found = [[("PER", 1), ("PER", 5), ("LOC", 2)], [("ORG", 1)]]
    counts = ClassCounts.of(gold, found, ["LOC", "PER"])
    assert counts.names == ("LOC", "PER", "ORG")  # what nobody expected comes last
    assert counts.gold.toarray().tolist() == [[1, 2, 0], [0, 0, 0]]
    assert counts.found.toarray().tolist() == [[1, 2, 0], [0, 0, 1]]
    assert counts.hits.toarray().tolist() == [[0, 1, 0], [0, 0, 0]]


def test_the_classes_of_a_task(evaluated):
    expected = {
        "two labels": ("no", "yes"),
        "sets": ("a", "b", "c", "d"),
        "tags": ("LOC", "PER"),
        "numbers": None,
        "squad": None,
    }
    for kind, names in expected.items():
        made = evaluated(kind)
        counts = class_counts(made.task, outcomes(*made.of))
        assert (counts and counts.names) == names


def test_what_is_undefined_is_0():
    zero, one = np.zeros(1), np.ones(1)
    assert ratio(zero, zero) == f1_of(zero, zero, zero) == 0
    assert f1_of(one, one, one) == 1

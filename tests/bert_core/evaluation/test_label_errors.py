"""Label errors in made-up probabilities."""

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.evaluation.label_errors import (
    ABSENT,
    errors_of_label_sets,
    errors_of_labels,
    in_several_folds,
    judged_labels,
)

NAMES = ("a", "b", "c")


def drawn(num_labels=3, count=300):
    """Right labels, and probabilities that know them, each a little differently."""
    random = np.random.default_rng(0)
    right = random.integers(3, size=count)
    probabilities = np.full((count, num_labels), 0.1)
    probabilities[np.arange(count), right] = 0.8
    probabilities *= random.uniform(0.8, 1.2, probabilities.shape)
    return right, probabilities / probabilities.sum(axis=1, keepdims=True), random


def test_wrong_labels_come_first_and_are_counted_by_pair():
    right, probabilities, random = drawn()
    wrong = random.choice(300, 15, replace=False)
    labels = right.copy()
    labels[wrong] = (labels[wrong] + 1) % 3
    found = errors_of_labels(labels, probabilities, NAMES)
    assert {*found.order[:15].tolist()} == {*wrong.tolist()}
    assert {*np.flatnonzero(found.suspects).tolist()} <= {*wrong.tolist()}
    assert found.suspects.sum() >= 6 and 0.02 < found.share < 0.08
    assert [found.suggested[n] for n in wrong] == [(label,) for label in right[wrong]]
    assert {(each.given, each.likely) for each in found.noise} <= {
        ("b", "a"),
        ("c", "b"),
        ("a", "c"),
    }
    counts = [each.count for each in found.noise]
    assert counts == sorted(counts, reverse=True)
    assert found.joint is not None and found.joint.sum() == pytest.approx(300)


@pytest.mark.filterwarnings("error")
def test_a_label_that_nobody_has_or_hardly_anybody_changes_nothing():
    right, probabilities, _ = drawn(num_labels=4)
    labels = right.copy()
    labels[0] = (labels[0] + 1) % 3
    found = errors_of_labels(labels, probabilities, (*NAMES, "never"))
    assert found.order[0] == 0 and all("never" not in (p.given, p.likely) for p in found.noise)
    labels[1] = 3
    assert not errors_of_labels(right, probabilities, (*NAMES, "never")).suspects[5:].any()
    assert {*errors_of_labels(labels, probabilities, (*NAMES, "never")).order[:2]} == {0, 1}


def test_a_label_that_models_know_less_is_not_mostly_suspect():
    random = np.random.default_rng(0)
    right = (random.random(2000) < 0.3).astype(np.int64)
    own = np.where(right == 1, random.uniform(0.1, 0.9, 2000), random.uniform(0.4, 1, 2000))
    labels = right.copy()
    labels[random.choice(np.flatnonzero(right == 0), 40, replace=False)] = 1
    labels[random.choice(np.flatnonzero(right == 1), 10, replace=False)] = 0
    of_one = np.where(right == 1, own, 1 - own)
    found = errors_of_labels(labels, np.stack([1 - of_one, of_one], axis=1), ("often", "rare"))
    of_rare_and_right = found.suspects & (right == 1) & (labels == 1)
    assert of_rare_and_right.sum() < 0.5 * found.suspects.sum()


def test_of_several_labels_each_is_judged():
    random = np.random.default_rng(1)
    right = random.random((200, 4)) < 0.4
    right[:, 3] = False
    probabilities = np.where(right, 0.85, 0.1) * random.uniform(0.9, 1.1, right.shape)
    given = right.copy()
    given[:8, 0] ^= True
    fold = np.arange(200) % 4
    given[:, 3] = right[:, 3] = fold == 1  # judged by a model that has not learned it
    found = errors_of_label_sets(
        given, probabilities, (*NAMES, "of one fold"), judged_labels(given, fold)
    )
    assert {*found.order[:8].tolist()} == {*range(8)}
    suspects = np.flatnonzero(found.suspects)
    assert len(suspects) >= 3 and suspects.max() < 8
    for unit in suspects.tolist():
        assert found.suggested[unit] == tuple(np.flatnonzero(right[unit]).tolist())
    assert all({pair.given, pair.likely} == {ABSENT, "a"} for pair in found.noise[:1])
    assert found.joint is None and found.share == len(suspects) / 200


def test_fewer_than_two_labels_to_judge_are_refused():
    given = np.ones((5, 3), dtype=bool)
    given[0, 0] = False
    with pytest.raises(UserError, match="fewer than two labels"):
        judged_labels(given, np.arange(5))


def test_a_label_of_one_fold_is_not_in_several():
    found = in_several_folds(np.array([0, 0, 1, 1, 3]), np.array([0, 1, 2, 2, 0]), 4)
    assert found.tolist() == [True, False, False, False]

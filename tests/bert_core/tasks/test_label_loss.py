"""The loss of labels that are rare, easy or doubtful, beside what it is defined as."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.settings import LabelLossSettings
from bert_core.tasks.label_loss import PLAIN, LabelLoss, balanced_weights

OUTPUTS = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0, 0, 0, 1, 2, IGNORE_INDEX])
SETS = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0], [1, 0, 0.0]])


def probabilities(outputs, labels):
    return outputs.softmax(1)[torch.arange(len(labels)), labels]


def test_plain_is_the_cross_entropy():
    expected = F.cross_entropy(OUTPUTS, LABELS, ignore_index=IGNORE_INDEX, reduction="sum")
    assert torch.equal(PLAIN.of_classes(OUTPUTS, LABELS), expected)
    expected = F.binary_cross_entropy_with_logits(OUTPUTS, SETS, reduction="none")
    assert torch.equal(PLAIN.of_label_sets(OUTPUTS, SETS), expected)


def test_balanced_labels_count_alike():
    weights = balanced_weights(LABELS.numpy(), 4)
    assert weights.tolist() == [0.5, 2.0, 2.0, 1.0], "the last one never occurs"
    known = LABELS[LABELS >= 0]
    assert weights[known.numpy()].mean() == pytest.approx(1)
    sums = np.bincount(known.numpy(), weights[known.numpy()])
    assert np.allclose(sums, sums[0])
    unknown = np.full((1, 3), np.nan)
    weights = balanced_weights(np.concatenate([SETS.numpy(), unknown]), 3)
    assert weights.tolist() == pytest.approx([2 / 5, 5 / 2, 6])


def test_weights_multiply_the_loss_of_their_label():
    weights = torch.tensor([0.5, 2.0, 3.0])
    known = LABELS[:-1]
    each = -probabilities(OUTPUTS[:-1], known).log() * weights[known]
    found = LabelLoss(weights).of_classes(OUTPUTS, LABELS)
    torch.testing.assert_close(found, each.sum())
    found = LabelLoss(weights).of_label_sets(OUTPUTS, SETS)
    plain = PLAIN.of_label_sets(OUTPUTS, SETS)
    torch.testing.assert_close(found, torch.where(SETS > 0, plain * weights, plain))


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 3.0])])
def test_sure_decisions_count_less(weights):
    gamma, known = 2.0, LABELS[:-1]
    right = probabilities(OUTPUTS[:-1], known)
    factor = torch.ones(3)[known] if weights is None else weights[known]
    expected = (factor * (1 - right) ** gamma * -right.log()).sum()
    found = LabelLoss(weights, focal_gamma=gamma)
    torch.testing.assert_close(found.of_classes(OUTPUTS, LABELS), expected)
    p = torch.where(SETS > 0, OUTPUTS.sigmoid(), 1 - OUTPUTS.sigmoid())
    alike = torch.ones(3) if weights is None else weights
    expected = torch.where(SETS > 0, alike, torch.ones(3)) * (1 - p) ** gamma * -p.log()
    torch.testing.assert_close(found.of_label_sets(OUTPUTS, SETS), expected)


def test_a_sure_decision_has_a_gradient():
    loss = LabelLoss(focal_gamma=0.5)
    outputs = torch.tensor([[40.0, -40.0], [0.3, 0.1]], requires_grad=True)
    loss.of_classes(outputs, torch.tensor([0, 1])).backward()
    assert outputs.grad.isfinite().all() and outputs.grad[1].all()
    outputs = torch.tensor([[200.0, -200.0]], requires_grad=True)
    loss.of_label_sets(outputs, torch.tensor([[1.0, 0.0]])).sum().backward()
    assert outputs.grad.isfinite().all()


def test_balanced_weights_of_what_is_never_or_always_there():
    sets = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]], dtype=np.float32)
    assert balanced_weights(sets, 3).tolist() == [1, 2, 1]
    assert balanced_weights(np.array([0, 0, 1, 1, 1, 1]), 3).tolist() == [1.5, 0.75, 1]


def test_a_share_of_the_target_is_of_all_labels():
    found = LabelLoss(label_smoothing=0.3).of_classes(OUTPUTS, LABELS)
    targets = F.one_hot(LABELS[:-1], 3) * 0.7 + 0.1
    expected = -(targets * OUTPUTS[:-1].log_softmax(1)).sum()
    torch.testing.assert_close(found, expected)
    found = LabelLoss(label_smoothing=0.2).of_label_sets(OUTPUTS, SETS)
    expected = F.binary_cross_entropy_with_logits(OUTPUTS, SETS * 0.8 + 0.1, reduction="none")
    torch.testing.assert_close(found, expected)


def test_parts_of_a_batch_add_up():
    loss = LabelLoss(torch.tensor([0.5, 2.0, 3.0]), focal_gamma=1.5, label_smoothing=0.1)
    whole = loss.of_classes(OUTPUTS, LABELS)
    parts = [loss.of_classes(OUTPUTS[some], LABELS[some]) for some in ([0, 3], [1, 2, 4, 5, 6])]
    torch.testing.assert_close(sum(parts), whole)


def test_settings_name_labels():
    given = LabelLossSettings(class_weights={"b": 5}, focal_gamma=1)
    found = LabelLoss.of(given, ("a", "b", "c"), LABELS.numpy())
    assert found.weights.tolist() == [1, 5, 1] and found.focal_gamma == 1
    with pytest.raises(UserError, match="unknown label, did you mean spam"):
        LabelLoss.of(LabelLossSettings(class_weights={"spma": 5}), ("ham", "spam"), LABELS.numpy())
    with pytest.raises(ValueError, match="above 0"):
        LabelLossSettings(class_weights={"a": 0})
    assert not LabelLossSettings().changed
    assert given.changed == ["class_weights", "focal_gamma"]

"""Scores of all labels, in each form."""

import numpy as np
import pytest
import torch

from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.label_scores import LabelScores
from bert_core.tokenizer import SPECIAL_TOKENS, wordpiece_tokenizer

OUTPUTS = np.array([[0.5, -1.0, 2.0], [0.0, 0.0, -3.0]], dtype=np.float32)
TEXTS = [Text("a", None, None), Text("b", None, None)]


@pytest.fixture(scope="module")
def tokenizer():
    return wordpiece_tokenizer({w: i for i, w in enumerate([*SPECIAL_TOKENS, "a"])}, lowercase=True)


def scores(tokenizer, kind, function, outputs=OUTPUTS):
    labels = () if kind == "regression" else ("x", "y", "z")
    asked = LabelScores(Classification(kind=kind, labels=labels), function)
    rows = asked.encode(TEXTS, tokenizer)
    found = asked.decode(outputs, rows, TEXTS)
    assert all(tuple(each["scores"]) == asked.labels for each in found)
    return np.array([list(each["scores"].values()) for each in found])


@pytest.mark.parametrize(
    ("kind", "function", "wanted"),
    [
        ("single", None, lambda x: x.softmax(1)),
        ("single", "sigmoid", torch.sigmoid),
        ("single", "none", lambda x: x),
        ("multiple", None, torch.sigmoid),
        ("multiple", "softmax", lambda x: x.softmax(1)),
    ],
)
def test_scores_are_as_asked_for(tokenizer, kind, function, wanted):
    found = scores(tokenizer, kind, function)
    np.testing.assert_allclose(found, wanted(torch.from_numpy(OUTPUTS)), atol=1e-6)


def test_a_number_stays_what_it_is(tokenizer):
    found = scores(tokenizer, "regression", None, OUTPUTS[:, :1])
    np.testing.assert_allclose(found, OUTPUTS[:, :1])


def test_the_usual_scores_are_those_of_the_task(tokenizer):
    for kind in ("single", "multiple"):
        task = Classification(kind=kind, labels=("x", "y", "z"))
        rows = task.encode(TEXTS, tokenizer)
        wanted = [each["scores"] for each in task.decode(OUTPUTS, rows, TEXTS)]
        assert [each["scores"] for each in LabelScores(task).decode(OUTPUTS, rows, TEXTS)] == wanted


def test_windows_are_averaged_by_their_tokens(tokenizer):
    task = Classification(labels=("x", "y"), max_length=8, overflow="window")
    texts = [Text("a " * 8, None, None)]
    rows = task.encode(texts, tokenizer)
    outputs = np.arange(len(rows.lengths) * 2, dtype=np.float32).reshape(-1, 2)
    (found,) = LabelScores(task, "none").decode(outputs, rows, texts)
    wanted = (outputs * rows.lengths[:, None]).sum(0) / rows.lengths.sum()
    assert list(found["scores"].values()) == pytest.approx(wanted.tolist())

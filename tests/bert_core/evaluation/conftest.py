"""Made-up predictions as fixtures."""

import numpy as np
import pytest
from made_up_predictions import KINDS, LABELS, MAKERS, Evaluated

from bert_core.tasks.classification import Classification, Text


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def evaluated():
    """Makes examples of a kind of task and predictions for them."""

    def make(kind, num=60, seed=0):
        return MAKERS[kind](np.random.default_rng(seed), num)

    return make


@pytest.fixture
def with_labels():
    """Makes `Evaluated` of given right answers, those found, and how sure the model was."""

    def make(gold, found, confidences=None, names=LABELS):
        confidences = confidences or [0.9] * len(gold)
        predictions = []
        for label, confidence in zip(found, confidences, strict=True):
            rest = (1 - confidence) / (len(names) - 1)
            scores = {name: confidence if name == label else rest for name in names}
            predictions.append({"label": label, "scores": scores})
        examples = [
            Text(f"text {number}", None, label, f"file:{number}")
            for number, label in enumerate(gold)
        ]
        return Evaluated(Classification(labels=tuple(names)), predictions, examples)

    return make

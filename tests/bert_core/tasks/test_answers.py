"""The fields of answers; that they are those of HTTP and of offline prediction their tests say."""

import json

import numpy as np
import pytest
import torch

from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tasks.answers import LabelScores, answered, answering, classified, tagged
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tokenizer import wordpiece_tokenizer

BEST = {"text": "b c", "start": 2, "end": 5, "score": 2.0, "probability": 0.6}
NEXT = {"text": "b", "start": 2, "end": 3, "score": 1.0, "probability": 0.3}
NOTHING = {"text": "", "start": 0, "end": 0, "score": 0.5, "probability": 0.1}


def test_the_best_labels_come_first():
    found = {"label": "b", "scores": {"a": 0.2, "b": 0.7, "c": 0.1}}
    best = [{"label": "b", "score": 0.7}, {"label": "a", "score": 0.2}]
    assert classified(found, 2) == {"label": "b", "scores": best}
    assert len(classified(found)["scores"]) == 3
    assert found["scores"] == {"a": 0.2, "b": 0.7, "c": 0.1}, "left as it was"
    assert classified({"labels": [], "scores": {}}) == {"labels": [], "scores": []}
    assert classified({"value": 1.5}, 3) == {"value": 1.5}


def test_an_entity_has_its_fields_in_their_order():
    entity = {"score": 0.9, "type": "X", "text": "a", "start": 0, "end": 1}
    words = {"start_word": 0, "end_word": 1}
    (given,) = tagged({"entities": [entity | words]})["entities"]
    assert json.dumps(given).startswith('{"type": "X", "text": "a", "start": 0, "end": 1, "start_w')
    assert given == entity | words
    assert tagged({"entities": [entity]})["entities"] == [entity]


def test_answers_are_the_passages_that_were_found():
    found = {**BEST, "null_score": -1.5, "n_best": [BEST, NEXT, NOTHING]}
    assert answered(found) == {"answers": [BEST], "null_score": -1.5}
    assert answered(found, 5)["answers"] == [BEST, NEXT]
    none = {**NOTHING, "null_score": 3.0, "n_best": [BEST, NOTHING]}
    assert answered(none, 5) == {"answers": [], "null_score": 3.0}


@pytest.mark.parametrize("no_answer", [False, True])
def test_a_question_is_asked_as_the_model_has_it_unless_it_is_said(no_answer):
    task = QuestionAnswering(no_answer=no_answer, max_answer_length=7, n_best=5)
    assert answering(task, overflow="window", top_k=3) == task
    asked = answering(
        task,
        overflow="left",
        top_k=9,
        max_answer_length=2,
        align_to_words=True,
        null_threshold=-1.0,
    )
    assert (asked.overflow, asked.n_best, asked.max_answer_length) == ("left", 9, 2)
    assert asked.align_to_words and asked.no_answer and asked.null_threshold == -1


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

import json
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest

from bert_core.evaluation.outcomes import (
    correctness,
    documents,
    gold_entities,
    outcomes,
)
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.task import has_answer

ACCURACY = {
    "two labels": "accuracy",
    "five labels": "accuracy",
    "sets": "exact_match",
    "choices": "accuracy",
    "squad": "exact_match",
    "squad v2": "exact_match",
}


def test_every_outcome_is_ready_for_json_and_right_as_often_as_the_task_says(evaluated, kind):
    made = evaluated(kind)
    found = outcomes(*made.of)
    assert len(found) == 60
    json.dumps([asdict(each) for each in found])
    if kind in ACCURACY:
        metrics = made.task.metrics(made.predictions, made.examples)
        assert correctness(found).mean() == pytest.approx(metrics[ACCURACY[kind]])
    assert (correctness(found) is None) == (kind == "numbers")


def test_a_sentence_is_right_when_all_its_entities_are(evaluated):
    made = evaluated("tags", 200)
    found = correctness(outcomes(*made.of))
    expected = []
    for example, prediction in zip(made.examples, made.predictions, strict=True):
        metrics = made.task.metrics([prediction], [example])
        none = not prediction["entities"] and metrics["recall"] == 0 and set(example.tags) == {"O"}
        expected.append(none or metrics["f1"] == 1)
    assert found.tolist() == expected
    assert 0 < found.mean() < 1


def test_gold_entities_are_those_of_the_tags():
    sentences = [
        TaggedSentence(["Anna", "Lee", "in", "Oslo"], ["B-PER", "I-PER", "O", "B-LOC"]),
        TaggedSentence(["nobody"], ["O"]),
        TaggedSentence(["Rome", "Bern"], ["B-LOC", "B-LOC"]),
        TaggedSentence(["unknown"], None),
    ]
    assert gold_entities(sentences) == [
        [
            {"type": "PER", "start": 0, "end": 2, "text": "Anna Lee"},
            {"type": "LOC", "start": 3, "end": 4, "text": "Oslo"},
        ],
        [],
        [
            {"type": "LOC", "start": 0, "end": 1, "text": "Rome"},
            {"type": "LOC", "start": 1, "end": 2, "text": "Bern"},
        ],
        [],
    ]
    assert gold_entities([]) == []


def test_what_is_not_known_is_neither_right_nor_wrong(evaluated, kind):
    made = evaluated(kind, 4)
    assert all(map(has_answer, made.examples))
    field = {"tags": "tags", "squad": "answers", "squad v2": "answers"}.get(kind, "answer")
    unknown = [replace(each, **{field: None}) for each in made.examples]
    assert not any(map(has_answer, unknown))
    found = outcomes(made.task, made.predictions, unknown)
    assert {(each.gold, each.correct) for each in found} == {(None, None)}


def test_confidence_is_that_of_what_was_found(evaluated):
    made = evaluated("choices")
    scores = np.array([each["scores"] for each in made.predictions])
    found = [each.confidence for each in outcomes(*made.of)]
    assert found == scores.max(axis=1).tolist()


def test_questions_about_a_context_and_sentences_of_a_document_belong_together(evaluated):
    contexts = documents(evaluated("squad", 20).examples)
    assert [contexts.count(each) for each in contexts] == [5] * 20
    sentences = [TaggedSentence(["a"], ["O"], document) for document in ("x", "x", None, None)]
    names = documents(sentences)
    assert names[:2] == ["x", "x"]
    assert len(set(names)) == 3
    assert documents(evaluated("two labels").examples) is None


@dataclass
class Riddle:
    riddle: str
    answer: str
    where: str = "riddles:3"


def test_a_task_of_somebody_elses_has_outcomes(evaluated):
    (found,) = outcomes(evaluated("numbers").task, [{"guess": "an egg"}], [Riddle("white", "egg")])
    assert found.texts == {"riddle": "white"}
    assert (found.gold, found.found, found.where) == ("egg", {"guess": "an egg"}, "riddles:3")
    assert found.correct is None
    assert has_answer(Riddle("white", "egg"))
    assert not has_answer(Riddle("white", None))
    assert has_answer(object())

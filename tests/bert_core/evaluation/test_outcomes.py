"""Outcomes and the files of predictions."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.evaluation.intervals import compare
from bert_core.evaluation.outcomes import (
    documents,
    gold_entities,
    outcomes,
    prediction_records,
    read_predictions,
    refuse_unknown_file,
    write_for_scorers,
    write_predictions,
)
from bert_core.strict_files import parse_json
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
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
        assert np.mean([each.correct for each in found]) == pytest.approx(metrics[ACCURACY[kind]])
    assert all((each.correct is None) == (kind == "numbers") for each in found)


def test_a_sentence_is_right_when_all_its_entities_are(evaluated):
    made = evaluated("tags", 200)
    found = [each.correct for each in outcomes(*made.of)]
    expected = []
    for example, prediction in zip(made.examples, made.predictions, strict=True):
        metrics = made.task.metrics([prediction], [example])
        none = not prediction["entities"] and metrics["recall"] == 0 and set(example.tags) == {"O"}
        expected.append(none or metrics["f1"] == 1)
    assert found == expected
    assert len(set(found)) == 2


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
    unknown = [replace(example, **{field: None}) for example in made.examples]
    assert not any(map(has_answer, unknown))
    found = outcomes(made.task, made.predictions, unknown)
    assert {(each.gold, each.correct) for each in found} == {(None, None)}


def test_confidence_is_that_of_what_was_found(evaluated):
    made = evaluated("choices")
    scores = np.array([prediction["scores"] for prediction in made.predictions])
    found = [outcome.confidence for outcome in outcomes(*made.of)]
    assert found == scores.max(axis=1).tolist()


def test_questions_about_a_context_and_sentences_of_a_document_belong_together(evaluated):
    contexts = documents(evaluated("squad", 20).examples)
    assert [contexts.count(context) for context in contexts] == [5] * 20
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


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_predictions_come_back_as_they_were(evaluated, kind, suffix, tmp_path):
    made = evaluated(kind, 20)
    path = tmp_path / "new" / f"predictions{suffix}"
    write_predictions(prediction_records(*made.of), path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    found = read_predictions(path, made.task, made.examples, made.predictions)
    assert found == made.predictions
    same = compare(made.task, made.predictions, found, made.examples, num_resamples=10)
    assert same.metrics[made.task.criterion].difference.value == 0


def test_a_record_has_what_people_look_for(evaluated, tmp_path):
    made = evaluated("two labels", 3)
    path = tmp_path / "predictions.jsonl"
    write_predictions(prediction_records(*made.of), path)
    first = json.loads(path.read_text().splitlines()[0])
    assert first == {
        "where": "file:0",
        "texts": {"first": made.examples[0].first},
        "gold": made.examples[0].answer,
        "found": made.predictions[0]["label"],
        "correct": made.examples[0].answer == made.predictions[0]["label"],
        "confidence": made.predictions[0]["scores"][made.predictions[0]["label"]],
        "columns": {"source": "s0", "size": "0"},
        "prediction": made.predictions[0],
    }


@pytest.mark.parametrize(
    "odd", [[1, {"a": [None, "é"]}], [{}, {}], [{"a": [{}]}, {"a": []}], [2**70, 1], [1, 2**64]]
)
def test_columns_that_parquet_lacks_go_into_it_as_json(evaluated, tmp_path, odd):
    import pyarrow.parquet as pq

    made = evaluated("two labels", 2)
    for example, value in zip(made.examples, odd, strict=True):
        example.columns["odd"] = value
    path = tmp_path / "predictions.parquet"
    write_predictions(prediction_records(*made.of), path)
    table = pq.read_table(path).to_pylist()
    assert [json.loads(row["columns"])["odd"] for row in table] == odd
    assert [row["found"] for row in table] == [
        prediction["label"] for prediction in made.predictions
    ]


def test_what_is_no_number_is_null_in_json(evaluated, tmp_path):
    made = evaluated("two labels", 1)
    made.examples[0].columns["price"] = [float("nan"), {"high": float("inf")}]
    path = tmp_path / "predictions.jsonl"
    write_predictions(prediction_records(*made.of), path)
    assert parse_json(path.read_bytes(), str(path))["columns"]["price"] == [None, {"high": None}]


def test_predictions_for_other_examples_are_refused(evaluated, tmp_path):
    made = evaluated("two labels", 6)
    path = tmp_path / "predictions.jsonl"
    write_predictions(prediction_records(*made.of), path)
    with pytest.raises(UserError, match="6 predictions for 5 examples"):
        read_predictions(path, made.task, made.examples[:5], made.predictions[:5])
    with pytest.raises(UserError, match=r"another text: .*predictions.jsonl:1 \(file:5"):
        read_predictions(path, made.task, made.examples[::-1], made.predictions)
    path.write_text('{"text": "x"}\n')
    with pytest.raises(UserError, match="not a file of predictions: .*:1"):
        read_predictions(path, made.task, made.examples[:1], made.predictions[:1])
    with pytest.raises(UserError, match="use one of .jsonl, .parquet"):
        write_predictions([], tmp_path / "predictions.csv")


@pytest.mark.parametrize("change", ["sets", "five labels", "numbers", "choices"])
def test_predictions_of_other_answers_are_refused(evaluated, tmp_path, change):
    made, other = evaluated("two labels", 6), evaluated(change, 6)
    records = prediction_records(*made.of)
    for record, prediction in zip(records, other.predictions, strict=True):
        record["prediction"] = prediction
    path = tmp_path / "predictions.jsonl"
    write_predictions(records, path)
    with pytest.raises(UserError, match=r"predictions.jsonl:1"):
        read_predictions(path, made.task, made.examples, made.predictions)


def test_the_order_of_the_labels_does_not_matter(evaluated, tmp_path):
    made = evaluated("five labels", 6)
    for prediction in made.predictions:
        prediction["scores"] = dict(reversed(prediction["scores"].items()))
    path = tmp_path / "predictions.jsonl"
    write_predictions(prediction_records(*made.of), path)
    own = evaluated("five labels", 6).predictions
    assert read_predictions(path, made.task, made.examples, own) == own


def test_squads_json_has_the_answer_to_each_id(tmp_path):
    questions = [Question("a", "Who?", "c", (), where="x"), Question("é", "Why?", "c", None)]
    predictions = [{"text": "New \u2028York"}, {"text": ""}]
    path = tmp_path / "new" / "out.json"
    write_for_scorers(predictions, questions, path)
    assert json.loads(path.read_text()) == {"a": "New \u2028York", "é": ""}
    assert [each.name for each in path.parent.iterdir()] == ["out.json"]
    with pytest.raises(UserError, match="two questions of the id a: x"):
        write_for_scorers(predictions, [questions[0]] * 2, path)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("iob2", "Jo B-PER B-PER\nin O O\nNew_York B-LOC O\n\nX I-LOC B-PER\n\n"),
        ("iob1", "Jo I-PER B-PER\nin O O\nNew_York I-LOC O\n\nX I-LOC B-PER\n\n"),
        (None, "Jo B-PER B-PER\nin O O\nNew_York B-LOC O\n\nX I-LOC B-PER\n\n"),
    ],
)
def test_conlls_lines_have_right_and_found_tags_in_the_scheme_of_the_data(
    tmp_path, scheme, expected
):
    sentences = [
        TaggedSentence(["Jo", "in", "New York"], ["B-PER", "O", "B-LOC"], scheme=scheme),
        TaggedSentence(["X"], ["I-LOC" if scheme is None else "B-LOC"], scheme=scheme),
    ]
    found = [{"tags": ["B-PER", "O", "O"]}, {"tags": ["B-PER"]}]
    path = tmp_path / "out.conll"
    write_for_scorers(found, sentences, path)
    expected = expected.replace("X I-LOC", "X B-LOC") if scheme == "iob2" else expected
    assert path.read_text() == expected
    write_for_scorers(found, [sentences[0], replace(sentences[1], tags=None)], path)
    assert path.read_text() == "Jo B-PER\nin O\nNew_York O\n\nX B-PER\n\n"


def test_a_file_that_a_task_does_not_have_is_refused():
    for name, task in (("a.json", Tagging()), ("a.conll", QuestionAnswering())):
        with pytest.raises(UserError, match=f"{name} .use .jsonl"):
            refuse_unknown_file(Path(name), task)
    for name in ("a.jsonl", "a.parquet", "a.txt"):
        refuse_unknown_file(Path(name), Tagging())
    with pytest.raises(UserError, match="unknown kind of file: --output a.csv .*SQuAD"):
        refuse_unknown_file(Path("a.csv"))

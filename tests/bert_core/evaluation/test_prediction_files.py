import json
from dataclasses import replace
from pathlib import Path

import pytest

from bert_core.errors import UserError
from bert_core.evaluation.comparison import compare
from bert_core.evaluation.outcomes import (
    prediction_records,
    read_predictions,
    refuse_unknown_file,
    write_for_scorers,
    write_predictions,
)
from bert_core.tasks.conll import TaggedSentence
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_predictions_come_back_as_they_were(evaluated, kind, suffix, tmp_path):
    made = evaluated(kind, 20)
    path = tmp_path / "new" / f"predictions{suffix}"
    write_predictions(prediction_records(*made.of), path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    found = read_predictions(path, made.task, made.examples)
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


def test_columns_of_several_types_go_into_parquet(evaluated, tmp_path):
    import pyarrow.parquet as pq

    made = evaluated("two labels", 2)
    made.examples[0].columns["odd"] = 1
    made.examples[1].columns["odd"] = {"a": [None, "é"]}
    path = tmp_path / "predictions.parquet"
    write_predictions(prediction_records(*made.of), path)
    table = pq.read_table(path).to_pylist()
    assert [json.loads(row["columns"])["odd"] for row in table] == [1, {"a": [None, "é"]}]
    assert [row["found"] for row in table] == [each["label"] for each in made.predictions]


def test_predictions_for_other_examples_are_refused(evaluated, tmp_path):
    made = evaluated("two labels", 6)
    path = tmp_path / "predictions.jsonl"
    write_predictions(prediction_records(*made.of), path)
    with pytest.raises(UserError, match="6 predictions for 5 examples"):
        read_predictions(path, made.task, made.examples[:5])
    with pytest.raises(UserError, match=r"another text: .*predictions.jsonl:1 \(file:5"):
        read_predictions(path, made.task, made.examples[::-1])
    path.write_text('{"text": "x"}\n')
    with pytest.raises(UserError, match="not a file of predictions: .*:1"):
        read_predictions(path, made.task, made.examples[:1])
    with pytest.raises(UserError, match="use one of .jsonl, .parquet"):
        write_predictions([], tmp_path / "predictions.csv")


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

import json

import pytest

from bert_core.errors import UserError
from bert_core.evaluation.comparison import compare
from bert_core.evaluation.prediction_files import (
    prediction_records,
    read_predictions,
    write_predictions,
)


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

"""One part of a prediction in this process; all of them on Ray are in test_predict.py."""

import json
from collections import Counter

import pytest

from bert_core.predictor import load_predictor
from bert_core.text.sources import find_parts
from bert_core.text.texts import NamedTexts, divide
from workflows.inference import prediction
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.prediction import PREDICTIONS, Prediction, Tally
from workflows.inference.prediction_request import request_of
from workflows.inference.text_parts import write_part


@pytest.fixture
def job_of(tmp_path, small_models):
    def make(model, path, **changed):
        settings = PredictSettings(model=model, input=[str(path)], output=tmp_path, **changed)
        (tmp_path / PREDICTIONS).mkdir()
        return Prediction(
            work=tmp_path,
            parts=list(divide(list(find_parts(settings.input, "text", Counter())))),
            model=small_models[model],
            task_name=None,
            request=request_of(settings, load_predictor(small_models[model])),
            id_column=None,
            output_format=settings.format,
            skip_bad=False,
            bfloat16=False,
            max_tokens=64,
            num_workers=None,
            use_gpu=None,
            threads_per_worker=1,
        )

    return make


def test_a_part_is_a_file_and_then_its_record(tmp_path, job_of, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("a cat\n\n" + "the mat\n" * 7)
    monkeypatch.setattr(prediction, "_TEXTS_AT_ONCE", 3)
    job = job_of("sentiment", path)
    record = write_part(job, 0)
    assert json.loads((tmp_path / "part-00000.json").read_text()) == record
    lines = (tmp_path / PREDICTIONS / "part-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [each["id"] for each in rows] == ["a.txt:0", *(f"a.txt:{7 + 8 * i}" for i in range(7))]
    assert record["dropped"] == {"empty_lines": 1}
    assert record["counts"] == {"texts": 8, "tokens": 32, "found": 8}
    assert Counter(record["found"]) == Counter(each["label"] for each in rows)
    assert record["values"] is None


def test_a_text_that_is_too_long_leaves_nothing(tmp_path, job_of):
    path = tmp_path / "a.txt"
    path.write_text("a cat\n" + "the mat " * 40)
    record = write_part(job_of("entities", path, overflow="error"), 0)
    assert record["error"][:2] == ["82 tokens are more than the model reads at once", "a.txt:6"]
    assert not record["left_out"] and not record["can_be_left_out"]
    assert not any((tmp_path / PREDICTIONS).iterdir())
    assert not (tmp_path / "part-00000.json").exists()


def test_numbers_are_tallied_over_chunks(tmp_path, job_of, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("a cat\nthe mat\nmat\ncat sat on\n")
    monkeypatch.setattr(prediction, "_TEXTS_AT_ONCE", 1)
    record = write_part(job_of("grade", path), 0)
    lines = (tmp_path / PREDICTIONS / "part-00000.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert record["values"] == [min(values), max(values), pytest.approx(sum(values))]
    assert len(set(values)) == 4 and Tally("value").values is None


def test_long_texts_are_few_at_a_time(monkeypatch):
    records = [NamedTexts(str(i), ("a" * 30, ["b"] * 10)) for i in range(5)]
    monkeypatch.setattr(prediction, "_CHARACTERS_AT_ONCE", 80)
    assert [len(each) for each in prediction._chunks(records)] == [2, 2, 1]
    monkeypatch.setattr(prediction, "_CHARACTERS_AT_ONCE", 10)
    assert [len(each) for each in prediction._chunks(records)] == [1] * 5

"""Requests, files and one part of a prediction in this process; test_predict.py runs it on Ray."""

import json
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from running import assert_alike

import bert_core
from bert_core.errors import UserError
from bert_core.model.strategies import STRATEGIES
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.predictor import load_predictor
from bert_core.tasks.answers import query_of
from bert_core.tasks.classification import Text
from bert_core.tasks.foreign_models import ForeignClassification
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.squad import Question
from bert_core.text import texts as texts_module
from bert_core.text.sources import find_parts
from bert_core.text.texts import NamedTexts, divide
from serving.schemas import ClassifyRequest, NerRequest, QaRequest
from workflows.inference import prediction
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.prediction import (
    PREDICTIONS,
    Prediction,
    Tally,
    prediction_file,
    request_of,
    schema_of,
)
from workflows.inference.text_parts import write_part
from workflows.settings import parse_command_line

GIVEN = ["--model", "m", "--output", "o", "--input", '["a.txt"]']


def test_the_options_are_those_of_http():
    asked = {
        name
        for request in (ClassifyRequest, NerRequest, QaRequest)
        for name in request.model_fields
        if name != "inputs"
    }
    assert asked <= PredictSettings.model_fields.keys()


def test_nothing_is_cut_by_default():
    assert parse_command_line(PredictSettings, GIVEN).overflow == "window"


@pytest.mark.parametrize("option", [["--top_k", "0"], ["--max_answer_length", "513"]])
def test_what_http_refuses_is_refused(option):
    with pytest.raises(UserError, match=option[0]):
        parse_command_line(PredictSettings, [*GIVEN, *option])


@pytest.fixture(scope="module")
def models(small_models):
    """Predictors by name."""
    return {name: load_predictor(path) for name, path in small_models.items() if name != "encoder"}


def ask(predictor, **changed):
    settings = PredictSettings(model="mine", input=["a.txt"], output="out", **changed)
    return request_of(settings, predictor)


def test_the_columns_are_those_that_the_task_reads(models):
    assert ask(models["entities"]).columns == {"text_column": "text"}
    assert ask(models["grade"], text_column="body").columns == {"text_column": "body"}
    pair = {"text_column": "text", "text_pair_column": "text_pair"}
    assert ask(models["paraphrase"]).columns == pair
    assert ask(models["paraphrase"], text_pair_column="b").columns["text_pair_column"] == "b"
    assert [*ask(models["answers"]).columns] == ["context_column", "question_column"]


def test_a_model_that_does_not_say_it_reads_pairs_where_a_column_is_named(models):
    task = ForeignClassification(labels=("a", "b"), published_labels=("a", "b"))
    predictor = replace(models["sentiment"], fine_tuned_for=task)
    assert ask(predictor).columns == {"text_column": "text"}
    asked = ask(predictor, text_pair_column="b")
    assert asked.columns == {"text_column": "text", "text_pair_column": "b"}
    assert asked.examples([NamedTexts("a", ("one", "two"))]) == [Text("one", "two", None)]


def test_records_become_examples(models):
    record = NamedTexts("a", ("one", "two"))
    assert ask(models["paraphrase"]).examples([record]) == [Text("one", "two", None)]
    assert ask(models["answers"]).examples([record]) == [Question("", "two", "one", None)]
    words = NamedTexts("b", (["a", "cat"],))
    assert ask(models["entities"]).examples([words]) == [["a", "cat"]]
    assert ask(models["entities"]).takes(words)
    assert not ask(models["sentiment"]).takes(words)


@pytest.mark.parametrize("model", ["sentiment", "entities", "answers"])
def test_what_would_be_an_error_is_cut_to_be_noticed(models, model):
    codecs = [
        query_of(models[model].task, ask(models[model], overflow=overflow).options).codec
        for overflow in ("error", "left", "window")
    ]
    assert [codec.overflow for codec in codecs] == ["right", "left", "window"]


def test_a_tagger_of_words_in_a_row_is_asked_for_first_sub_words(models):
    predictor = load_predictor_with_lstm(models["entities"])
    assert ask(predictor).options.aggregation == "first"
    with pytest.raises(UserError, match="--aggregation max"):
        ask(predictor, aggregation="max")


def load_predictor_with_lstm(predictor):
    """The same encoder and task under an LSTM."""
    tagger = FeatureTagger(
        STRATEGIES["last"],
        predictor.model.config,
        num_outputs=len(predictor.task.labels),
        lstm_size=8,
    )
    heads = torch.nn.ModuleDict({FEATURE_TAGGER: tagger})
    model = type(predictor.model)(predictor.model.encoder, dict(heads.items()))
    return replace(predictor, model=model)


def test_a_task_of_another_kind_is_led_elsewhere(models):
    other = replace(models["sentiment"], fine_tuned_for=MultipleChoice(), task_name="swag")
    with pytest.raises(UserError, match=r"MultipleChoice: mine .workflows/evaluate\.py"):
        ask(other)


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
    monkeypatch.setattr(texts_module, "TEXTS_AT_ONCE", 3)
    job = job_of("sentiment", path)
    record = write_part(job, 0)
    assert json.loads((tmp_path / "part-00000.json").read_text()) == record
    lines = (tmp_path / PREDICTIONS / "part-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == ["a.txt:0", *(f"a.txt:{7 + 8 * i}" for i in range(7))]
    assert record["dropped"] == {"empty_lines": 1}
    assert record["counts"] == {"texts": 8, "tokens": 32, "found": 8}
    assert Counter(record["found"]) == Counter(row["label"] for row in rows)
    assert record["values"] is None


def test_python_answers_the_same(tmp_path, job_of, small_models):
    texts = ["a cat", "the mat " * 40, "dogs sat on the mat"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    write_part(job_of("entities", tmp_path / "a.txt"), 0)
    lines = (tmp_path / PREDICTIONS / "part-00000.jsonl").read_text().splitlines()
    found = bert_core.load(small_models["entities"]).predict(texts, overflow="window")
    for line, answer in zip(lines, found, strict=True):
        row = json.loads(line)
        del row["id"]
        assert_alike(answer.model_dump(exclude_none=True), row)


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
    monkeypatch.setattr(texts_module, "TEXTS_AT_ONCE", 1)
    record = write_part(job_of("grade", path), 0)
    lines = (tmp_path / PREDICTIONS / "part-00000.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert record["values"] == [min(values), max(values), pytest.approx(sum(values))]
    assert len(set(values)) == 4 and Tally("value").values is None


def test_long_texts_are_few_at_a_time(monkeypatch):
    records = [NamedTexts(str(i), ("a" * 30, ["b"] * 10)) for i in range(5)]
    for most, sizes in ((80, [2, 2, 1]), (10, [1] * 5)):
        monkeypatch.setattr(texts_module, "CHARACTERS_AT_ONCE", most)
        chunks = texts_module.text_chunks(records, prediction._num_characters)
        assert [len(chunk) for chunk in chunks] == sizes


READ = {"id": "a", "n_tokens": 3, "truncated": False}
SCORES = [{"label": "zwölf", "score": 0.5}]
ENTITY = {"type": "X", "text": "a", "start": 0, "end": 1, "score": 0.25}
ANSWER = {"text": "a", "start": 0, "end": 1, "score": 2.5, "probability": 1.0}
ROWS = {
    "label": READ | {"label": "zwölf", "scores": SCORES},
    "labels": READ | {"labels": [], "scores": SCORES},
    "value": READ | {"value": 0.1},
    "entities": READ | {"entities": [ENTITY | {"start_word": 0, "end_word": 1}]},
    "answers": READ | {"answers": [ANSWER], "null_score": -1.5},
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_every_kind_come_back(tmp_path, kind):
    row = ROWS[kind]
    for output_format in ("jsonl", "parquet"):
        with prediction_file(tmp_path / f"a.{output_format}", output_format, kind) as write:
            write([row])
            write([row, row])
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").open()] == [row] * 3
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.to_pylist() == [row] * 3
    assert table.schema == schema_of(kind)
    assert "zwölf" in (tmp_path / "a.jsonl").read_text() or "label" not in kind


def test_entities_of_sub_words_have_no_words(tmp_path):
    with prediction_file(tmp_path / "a.parquet", "parquet", "entities") as write:
        write([READ | {"entities": [ENTITY]}, READ | {"entities": []}])
    first, second = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert first["entities"] == [ENTITY | {"start_word": None, "end_word": None}]
    assert second["entities"] == []


@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_nothing_is_there_before_all_of_it(tmp_path, output_format):
    path = tmp_path / f"a.{output_format}"
    with pytest.raises(KeyError), prediction_file(path, output_format, "value") as write:
        write([ROWS["value"]])
        assert not path.exists()
        raise KeyError
    assert not any(tmp_path.iterdir())
    with prediction_file(path, output_format, "value"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "a file without rows"

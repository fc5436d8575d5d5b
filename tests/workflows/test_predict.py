"""The prediction command: what the server says of the same texts, each row once."""

import gzip
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prediction_runs import LONG, read_index, read_rows, some_texts, write_jsonl
from running import assert_alike, start

from bert_core.predictor import load_predictor
from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.text_tagging import word_spans
from serving.engine import Engine
from serving.models import close_models, load_models
from workflows import predict

COMMAND = Path(predict.__file__)


@pytest.fixture(scope="module")
def server(small_models):
    """All of them behind one server."""
    loaded = load_models(small_models)
    running, stop = start(Engine(loaded), small_models)
    yield running
    stop()
    close_models(list(loaded.values()))


def without_nulls(value):
    """What HTTP leaves out, left out."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def inputs_for(model):
    """Items as HTTP has them, and the options of both."""
    texts, others = some_texts(1, 40), some_texts(2, 40)
    if model == "paraphrase":
        items = [{"text": a, "text_pair": b} for a, b in zip(texts, others, strict=True)]
        return items, {"top_k": 1}
    if model == "answers":
        contexts = some_texts(3, 40, longest=60)
        items = [{"question": a[:30], "context": b} for a, b in zip(texts, contexts, strict=True)]
        options = {"top_k": 3, "max_answer_length": 4, "align_to_words": True}
        return items, options | {"null_threshold": -11.5}
    return texts, {"aggregation": "average"} if model == "entities" else {}


ROUTES = {
    **dict.fromkeys(("sentiment", "paraphrase", "topics", "grade"), "classify"),
    "entities": "ner",
    "answers": "qa",
}


@pytest.mark.ray
@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
@pytest.mark.parametrize("model", ROUTES)
def test_rows_are_the_answers_of_the_server(
    run_predict, server, tmp_path, ray_cluster, model, output_format
):
    items, options = inputs_for(model)
    records = [each if isinstance(each, dict) else {"text": each} for each in items]
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": i} | each for i, each in enumerate(records)])
    given = {name: None if value is True else value for name, value in options.items()}
    common = {"id_column": "id", "part_bytes": 1000, "format": output_format}
    code, printed, error = run_predict(model, path, **given, **common)
    assert code == 0, error
    body = {"model": model, "inputs": items, "overflow": "window"} | options
    status, content = server.ask(f"/v1/{ROUTES[model]}", body)
    assert status == 200, content
    rows = read_rows(tmp_path / "out")
    assert [each["id"] for each in rows] == [str(number) for number in range(40)]
    found = [without_nulls({**each, "id": None}) for each in rows]
    assert_alike(found, content["results"])
    index = read_index(tmp_path / "out")
    assert index["counts"]["texts"] == 40 and len(index["parts"]) > 2
    assert index["counts"]["tokens"] == sum(each["n_tokens"] for each in rows)
    assert index["counts"]["windows"] > 0
    assert index["counts"]["truncated"] == sum(each["truncated"] for each in rows)
    assert printed.startswith("40 texts of")
    assert read_summary(printed, model) == index["found"]
    if model == "answers":
        assert 0 < index["found"]["answer"] < 40, "some have none"
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert names == ["index.json", "plan.json", "predictions"]


def read_summary(printed, model):
    """The counts of labels and types in the second line."""
    line = printed.splitlines()[1]
    if model == "grade":
        assert re.fullmatch(r"values from -?[\d.e-]+ to -?[\d.e-]+, -?[\d.e-]+ on average", line)
        return {}
    if model == "answers":
        return {"answer": int(re.fullmatch(r"answers in (\d+) of 40 texts", line)[1])}
    pairs = re.findall(r"(\w+) (\d+)(?: \([\d.]+%\))?(?:, |$)", line.rpartition(":")[2])
    return {name: int(count) for name, count in pairs}


@pytest.mark.ray
@pytest.mark.parametrize("model", ROUTES)
def test_rows_are_those_of_the_offline_predictor(
    run_predict, small_models, tmp_path, ray_cluster, model
):
    items, _ = inputs_for(model)
    records = [each if isinstance(each, dict) else {"text": each} for each in items]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    code, _, error = run_predict(model, tmp_path / "a.parquet", part_bytes=500)
    assert code == 0, error
    predictor = load_predictor(small_models[model])
    if model == "entities":
        spans = [word_spans(each) for each in items]
        examples = [
            TaggedSentence([text[a:b] for a, b in some])
            for text, some in zip(items, spans, strict=True)
        ]
    elif model == "answers":
        examples = [Question("", each["question"], each["context"], None) for each in items]
    else:
        examples = [Text(each["text"], each.get("text_pair"), None) for each in records]
    task = predictor.task.model_copy(update={"overflow": "window"})
    wanted, encoded = replace(predictor, task=task).predict(examples)
    rows = read_rows(tmp_path / "out")
    assert [each["id"] for each in rows] == [f"a.parquet:{number}" for number in range(40)]
    assert [each["n_tokens"] for each in rows] == encoded.num_tokens.tolist()
    for row, other in zip(rows, wanted, strict=True):
        if model == "entities":
            words = [(e["start_word"], e["end_word"], e["type"]) for e in row["entities"]]
            assert words == [(e["start"], e["end"], e["type"]) for e in other["entities"]]
            assert_alike([e["score"] for e in row["entities"]], scores_of(other["entities"]))
        elif model == "answers":
            assert_alike(row["answers"], other["n_best"][:1])
            assert_alike(row["null_score"], other["null_score"])
        else:
            found = {name: row[name] for name in row if name in ("label", "labels", "value")}
            assert_alike(found, {name: other[name] for name in found})
            if "scores" in other:
                assert_alike({s["label"]: s["score"] for s in row["scores"]}, other["scores"])


def scores_of(entities):
    return [each["score"] for each in entities]


@pytest.mark.ray
def test_words_may_be_given(run_predict, small_models, tmp_path, ray_cluster):
    texts = some_texts(4, 30)
    sentences = [each.split() for each in texts]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": each} for each in sentences])
    lines = tmp_path / "lines.txt.gz"
    lines.write_bytes(gzip.compress("\n".join(texts).encode()))
    for aggregation in ("first", "simple"):
        code, _, error = run_predict("entities", path, output=aggregation, aggregation=aggregation)
        assert code == 0, error
        code, _, error = run_predict(
            "entities", lines, output=f"{aggregation}-lines", aggregation=aggregation
        )
        assert code == 0, error
        rows, of_lines = (read_rows(tmp_path / f"{aggregation}{each}") for each in ("", "-lines"))
        assert sum(len(each["entities"]) for each in rows) > 10
        assert_alike([e["entities"] for e in rows], [e["entities"] for e in of_lines])
        for text, row in zip(texts, rows, strict=True):
            for each in row["entities"]:
                assert each["text"] == text[each["start"] : each["end"]]


@pytest.mark.ray
def test_a_long_text_is_read_as_asked_for(run_predict, tmp_path, ray_cluster):
    path = tmp_path / "a.txt"
    path.write_text(f"a cat\n{LONG}\nthe mat\n")
    for overflow in ("left", "right"):
        code, printed, error = run_predict("sentiment", path, overflow=overflow, output=overflow)
        assert code == 0, error
        assert "1 texts are cut" in printed
        assert [each["truncated"] for each in read_rows(tmp_path / overflow)] == [0, 1, 0]
    for part_bytes in (10, 10_000):
        code, _, error = run_predict(
            "sentiment", path, overflow="error", part_bytes=part_bytes, skip_bad=None
        )
        assert code == 2
        (line,) = error.splitlines()[-1:]
        assert re.fullmatch(
            r"error: \d+ tokens are more than the model reads at once: a.txt:6"
            r" \(shorten it, or set --overflow to window, right or left\)",
            line,
        ), line
        assert not (tmp_path / "out").exists(), "another overflow may be given"


def test_help_is_there_before_torch_is_loaded():
    source = "import sys; import workflows.predict; assert not {'torch', 'ray'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", source], check=True, cwd=COMMAND.parent.parent)

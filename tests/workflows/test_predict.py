"""The prediction command: the server's answers, each row once, whatever ends it."""

import gzip
import json
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pretraining_runs import REPOSITORY
from running import assert_alike, start
from small_tasks import WORDS

from bert_core.predictor import load_predictor
from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.text_tagging import word_spans
from serving.engine import Engine
from serving.models import close_models, load_models
from workflows import predict

LONG = " ".join(WORDS * 20)
"""Too long for a row of any of the small models."""


def some_texts(seed, count, longest=20):
    """Texts of few words, seeded, the last of them too long for a row."""
    choose = random.Random(seed)
    texts = [" ".join(choose.choices(WORDS, k=choose.randint(1, longest))) for _ in range(count)]
    return [*texts[:-1], LONG]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read_rows(folder):
    """All rows, as anybody would read them: in their order."""
    paths = sorted((folder / "predictions").iterdir())
    if paths[0].suffix == ".parquet":
        return pq.read_table(folder / "predictions").to_pylist()
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def read_index(folder):
    return json.loads((folder / "index.json").read_text())


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
@pytest.mark.parametrize(
    ("model", "output_format"), [*zip(ROUTES, ["jsonl", "parquet"] * 3, strict=True)]
)
def test_rows_are_the_answers_of_the_server_and_of_the_offline_predictor(
    run_predict, server, small_models, tmp_path, ray_cluster, model, output_format
):
    items, options = inputs_for(model)
    records = [item if isinstance(item, dict) else {"text": item} for item in items]
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"id": i} | record for i, record in enumerate(records)]
    )
    given = {name: None if value is True else value for name, value in options.items()}
    common = {"id_column": "id", "part_bytes": 1000, "format": output_format}
    code, printed, error = run_predict(model, path, **given, **common)
    assert code == 0, error
    rows = read_rows(tmp_path / "out")
    assert [row["id"] for row in rows] == [str(number) for number in range(40)]

    body = {"model": model, "inputs": items, "overflow": "window"} | options
    status, content = server.ask(f"/v1/{ROUTES[model]}", body)
    assert status == 200, content
    assert_alike([without_nulls({**row, "id": None}) for row in rows], content["results"])

    index = read_index(tmp_path / "out")
    assert index["counts"]["texts"] == 40 and len(index["parts"]) > 2
    assert index["counts"]["tokens"] == sum(row["n_tokens"] for row in rows)
    assert index["counts"]["windows"] > 0
    assert index["counts"]["truncated"] == sum(row["truncated"] for row in rows)
    assert printed.startswith("40 texts of")
    assert read_summary(printed, model) == index["found"]
    if model == "answers":
        assert 0 < index["found"]["answer"] < 40, "some have none"
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["index.json", "plan.json", "predictions"]

    if model not in ("entities", "answers"):  # these were asked with options of HTTP
        compare_with_offline(load_predictor(small_models[model]), records, rows)


def compare_with_offline(predictor, records, rows):
    examples = [Text(record["text"], record.get("text_pair"), None) for record in records]
    task = predictor.task.model_copy(update={"overflow": "window"})
    wanted, encoded = replace(predictor, fine_tuned_for=task).predict_examples(examples)
    assert [row["n_tokens"] for row in rows] == encoded.num_tokens.tolist()
    for row, other in zip(rows, wanted, strict=True):
        found = {name: row[name] for name in row if name in ("label", "labels", "value")}
        assert_alike(found, {name: other[name] for name in found})
        if "scores" in other:
            scores = {score["label"]: score["score"] for score in row["scores"]}
            assert_alike(scores, {label: other["scores"][label] for label in scores})


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
def test_entities_and_answers_are_those_of_the_offline_predictor(
    run_predict, small_models, tmp_path, ray_cluster
):
    texts, _ = inputs_for("entities")
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    code, _, error = run_predict("entities", tmp_path / "a.parquet", part_bytes=500)
    assert code == 0, error
    words = [[text[a:b] for a, b in word_spans(text)] for text in texts]
    wanted, rows = offline(
        small_models["entities"], [*map(TaggedSentence, words)], tmp_path / "out"
    )
    for row, other in zip(rows, wanted, strict=True):
        found = [(e["start_word"], e["end_word"], e["type"]) for e in row["entities"]]
        assert found == [(e["start"], e["end"], e["type"]) for e in other["entities"]]
        assert_alike(scores_of(row["entities"]), scores_of(other["entities"]))

    items, _ = inputs_for("answers")
    pq.write_table(pa.Table.from_pylist(items), tmp_path / "b.parquet")
    code, _, error = run_predict("answers", tmp_path / "b.parquet", part_bytes=9000, output="b")
    assert code == 0, error
    questions = [Question("", item["question"], item["context"], None) for item in items]
    wanted, rows = offline(small_models["answers"], questions, tmp_path / "b")
    assert [row["id"] for row in rows] == [f"b.parquet:{number}" for number in range(40)]
    for row, other in zip(rows, wanted, strict=True):
        assert_alike(row["answers"], other["n_best"][:1])
        assert_alike(row["null_score"], other["null_score"])


def offline(model, examples, folder):
    """Predictions of a model loaded here, and the rows of a folder, which have as many tokens."""
    predictor = load_predictor(model)
    task = predictor.task.model_copy(update={"overflow": "window"})
    wanted, encoded = replace(predictor, fine_tuned_for=task).predict_examples(examples)
    rows = read_rows(folder)
    assert [row["n_tokens"] for row in rows] == encoded.num_tokens.tolist()
    return wanted, rows


def scores_of(entities):
    return [entity["score"] for entity in entities]


@pytest.mark.ray
def test_words_may_be_given(run_predict, small_models, tmp_path, ray_cluster):
    texts = some_texts(4, 30)
    sentences = [each.split() for each in texts]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": sentence} for sentence in sentences])
    lines = tmp_path / "lines.txt.gz"
    lines.write_bytes(gzip.compress("\n".join(texts).encode()))
    code, _, error = run_predict("entities", path, lines, aggregation="simple")
    assert code == 0, error
    rows = read_rows(tmp_path / "out")
    rows, of_lines = rows[:30], rows[30:]
    assert sum(len(row["entities"]) for row in rows) > 10
    assert_alike([row["entities"] for row in rows], [row["entities"] for row in of_lines])
    for text, row in zip(texts, rows, strict=True):
        for entity in row["entities"]:
            assert entity["text"] == text[entity["start"] : entity["end"]]


@pytest.mark.ray
def test_a_long_text_is_read_as_asked_for(run_predict, tmp_path, ray_cluster):
    path = tmp_path / "a.txt"
    path.write_text(f"a cat\n{LONG}\nthe mat\n")
    code, printed, error = run_predict("sentiment", path, overflow="left")
    assert code == 0, error
    assert "1 texts are cut" in printed
    assert [row["truncated"] for row in read_rows(tmp_path / "out")] == [0, 1, 0]
    code, _, error = run_predict(
        "sentiment", path, overflow="error", part_bytes=10, skip_bad=None, output="error"
    )
    assert code == 2
    assert re.fullmatch(
        r"error: \d+ tokens are more than the model reads at once: a.txt:6"
        r" \(shorten it, or set --overflow to window, right or left\)",
        error.splitlines()[-1],
    ), error
    assert not (tmp_path / "error").exists(), "another overflow may be given"


HELP = """
import sys
from workflows import demo, predict, promote, quantize
for command in (demo, predict, promote, quantize):
    try:
        command.main(["--help"])
    except SystemExit as ended:
        assert not ended.code
assert demo.main(["--frehs"]) == 2
assert not {"torch", "ray", "mlflow"} & sys.modules.keys()
"""


def test_help_and_wrong_settings_are_answered_before_torch_is_loaded():
    done = subprocess.run(
        [sys.executable, "-c", HELP], check=True, cwd=REPOSITORY, capture_output=True, text=True
    )
    for option in ("--fresh", "--overflow", "--gate", "--split"):
        assert option in done.stdout
    assert "did you mean fresh" in done.stderr


@pytest.mark.ray
def test_what_cannot_be_read_is_counted_or_named(run_predict, tmp_path, ray_cluster):
    good = [{"text": "a cat"}, {"text": ""}, {"text": "the mat"}]
    bad = [{"text": 3}, {"other": "a"}, {"text": ["a", "cat"]}, {"text": "\ud800"}, 4]
    path = write_jsonl(tmp_path / "a.jsonl", [*good[:1], *bad, *good[1:]])
    path.write_text(path.read_text() + "{torn\n")
    torn = tmp_path / "b.parquet"
    pq.write_table(pa.table({"text": ["a cat"]}), torn)
    torn.write_bytes(torn.read_bytes()[:-9])
    code, _, error = run_predict("sentiment", path, torn)
    assert code == 2
    assert re.search(r"damaged parquet file: .*b\.parquet \(.*--skip_bad", error), error
    broken = tmp_path / "c.parquet"
    table = pa.table({"text": [f"{WORDS[i % 7]} {i}" for i in range(20_000)]})
    pq.write_table(table, broken, row_group_size=10_000)
    content = bytearray(broken.read_bytes())
    content[100:2000] = bytes(1900)  # the foot is whole: only a worker sees it
    broken.write_bytes(content)
    code, _, error = run_predict("sentiment", broken)
    assert code == 2 and re.search(r"--skip_bad to go on without it\)$", error), error
    code, printed, error = run_predict("sentiment", path, torn, broken, skip_bad=None)
    assert code == 0, error
    dropped = "dropped: 1 invalid json lines, 1 records of words, 1 records with half a character,"
    assert f"{dropped} 3 records without text" in printed
    assert re.search(r"left out: damaged parquet file: .*b\.parquet", printed)
    assert re.search(r"left out: .*c\.parquet, rows 0 to \d", printed)
    rows = read_rows(tmp_path / "out")
    assert [row["id"].partition(":")[0] for row in rows[:3]] == ["a.jsonl"] * 3
    assert read_index(tmp_path / "out")["counts"]["texts"] == len(rows) > 10_000
    empty = write_jsonl(tmp_path / "d.jsonl", [{"text": ["a"]}])
    code, _, error = run_predict("sentiment", empty, output="other")
    assert code == 2 and "no texts (1 records of words)" in error


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        ("encoder", {}, r"no known task.*encoder .*workflows/extract\.py"),
        ("nobody", {}, "no such model: nobody"),
        ("sentiment", {"text_column": "texd"}, r"no column 'texd': .*--text_column, .* text\)"),
        ("sentiment", {"id_column": "name"}, "no column 'name': .*a.jsonl .give --id_column"),
        ("sentiment", {"text_pair_column": "b"}, "reads single texts: --text_pair_column b"),
        ("sentiment", {"aggregation": "max"}, "says nothing to a model that gives labels: --aggr"),
        ("entities", {"top_k": 2}, "says nothing to a model that gives entities: --top_k"),
        ("paraphrase", {}, r"no column 'text_pair': .*a\.jsonl .give --text_pair_column"),
        ("answers", {}, r"no column 'context': .*a\.jsonl .give --context_column"),
        ("answers", {"context_column": "text"}, "no column 'question': .*give --question_column"),
        ("answers", {"text_column": "text"}, "gives answers to questions: --text_column"),
        ("sentiment", {"top_j": 2}, "unknown setting, did you mean top_k"),
        ("sentiment", {"overflow": "cut"}, "--overflow"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run_predict, tmp_path, model, options, match):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a cat"}])
    code, _, error = run_predict(model, path, **options)
    assert code == 2
    assert len(error.splitlines()) == 1
    assert re.search(match, error), error
    assert not (tmp_path / "out").exists()


def test_a_column_that_parquet_lacks_is_named_by_its_option(run_predict, tmp_path):
    pq.write_table(pa.table({"question": ["a"], "text": ["a cat"]}), tmp_path / "a.parquet")
    code, _, error = run_predict("answers", tmp_path / "a.parquet")
    assert code == 2 and "no column 'context'" in error and "--context_column" in error
    pq.write_table(pa.table({"context": ["a"], "question": [1]}), tmp_path / "a.parquet")
    code, _, error = run_predict("answers", tmp_path / "a.parquet")
    assert code == 2 and "int64, neither text" in error and "--question_column" in error


def test_lines_of_text_are_no_pairs(run_predict, tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n")
    for model in ("paraphrase", "answers"):
        code, _, error = run_predict(model, tmp_path / "a.txt")
        assert code == 2 and re.search("lines of text, and records of .* are needed", error), error


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_ended_at_any_moment_no_row_is_lost_or_there_twice(
    run_predict, small_models, tmp_path, subprocess_environment, ray_cluster
):
    inputs = [tmp_path / "a.txt", tmp_path / "b.parquet"]
    choose = random.Random(5)
    lines = [" ".join(choose.choices(WORDS, k=choose.randint(1, 9))) for _ in range(8000)]
    inputs[0].write_text("\n".join(lines))
    pq.write_table(pa.table({"text": lines}), inputs[1])
    options = {"part_bytes": 8000}
    code, _, error = run_predict("entities", *inputs, output="whole", **options)
    assert code == 0, error
    given = [sys.executable, str(COMMAND), "--model", str(small_models["entities"]), "--output"]
    given += [str(tmp_path / "ended"), "--input", *map(str, inputs), "--part_bytes", "8000"]
    environment = subprocess_environment | {"RAY_ADDRESS": ray_cluster}
    work = tmp_path / "ended" / ".preparing"
    ends = [(1, signal.SIGKILL, -signal.SIGKILL), (5, signal.SIGTERM, 130)]
    ends += [(12, signal.SIGKILL, -signal.SIGKILL)]
    for wanted, signal_number, code in ends:
        process = subprocess.Popen(given, env=environment, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while len(list(work.glob("part-*.json"))) < wanted and time.monotonic() < deadline:
            assert process.poll() is None, "it was done before it could be ended"
            time.sleep(0.02)
        process.send_signal(signal_number)
        _, error = process.communicate()
        assert process.returncode == code, error
        if code == 130:
            assert error.splitlines()[-1] == "stopped; the same command goes on"
        assert not (tmp_path / "ended" / "index.json").exists()
    done = subprocess.run(given, env=environment, check=True, capture_output=True, text=True)
    assert re.search(r"resuming: \d+ of \d+ parts are done", done.stdout)
    names = [
        {each.name: each.read_bytes() for each in (tmp_path / name / "predictions").iterdir()}
        for name in ("ended", "whole")
    ]
    assert names[0] == names[1], "the same bytes"
    rows = read_rows(tmp_path / "ended")
    assert len({row["id"] for row in rows}) == len(rows) == 16_000
    for of_line, of_row in zip(rows[:8000], rows[8000:], strict=True):
        assert_alike(of_line["entities"], of_row["entities"])
    again = subprocess.run(given, env=environment, check=True, capture_output=True, text=True)
    assert again.stdout.startswith("complete already")

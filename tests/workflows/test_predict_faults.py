"""The prediction command on wrong input, and ended in the middle: each row once, or one line."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prediction_runs import read_index, read_rows, write_jsonl
from running import assert_alike
from small_tasks import WORDS

from workflows import predict

COMMAND = Path(predict.__file__)


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
    assert [each["id"].partition(":")[0] for each in rows[:3]] == ["a.jsonl"] * 3
    assert read_index(tmp_path / "out")["counts"]["texts"] == len(rows) > 10_000
    empty = write_jsonl(tmp_path / "d.jsonl", [{"text": ["a"]}])
    code, _, error = run_predict("sentiment", empty, output="other")
    assert code == 2 and "no texts (1 records of words)" in error


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        ("encoder", {}, r"knows no task: .*encoder .*workflows/extract\.py"),
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
    assert re.search(r"going on: \d+ of \d+ parts are done", done.stdout)
    names = [
        {each.name: each.read_bytes() for each in (tmp_path / name / "predictions").iterdir()}
        for name in ("ended", "whole")
    ]
    assert names[0] == names[1], "the same bytes"
    rows = read_rows(tmp_path / "ended")
    assert len({each["id"] for each in rows}) == len(rows) == 16_000
    for of_line, of_row in zip(rows[:8000], rows[8000:], strict=True):
        assert_alike(of_line["entities"], of_row["entities"])
    again = subprocess.run(given, env=environment, check=True, capture_output=True, text=True)
    assert again.stdout.startswith("complete already")

"""Benchmarks that run on a Ray cluster: extraction, sweeps, and the memory of a cluster."""

import json
import os
import subprocess
import sys
import time

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet
from small_tasks import write_data, write_encoder

from benchmarks import extraction
from benchmarks.cluster_memory import Memory, resident_bytes, watched_memory
from benchmarks.tuning import TINY_EXAMPLES, main, write_head


def test_the_peak_is_above_what_was_there_before():
    assert Memory(100, [(0.2, 120), (0.4, 170), (0.6, 90)]).peak_above_idle == 70
    assert Memory(100).peak_above_idle == 0


@pytest.mark.slow
@pytest.mark.ray
def test_what_work_takes_is_seen_while_it_goes_on(ray_cluster):
    assert ray_cluster  # this process has joined it
    assert resident_bytes() > psutil.Process(os.getpid()).memory_full_info().pss  # the cluster too
    with watched_memory(0.05) as memory:
        held = bytearray(os.urandom(1 << 20) * 200)
        time.sleep(1)
        del held
    assert memory.peak_above_idle == pytest.approx(200 << 20, rel=0.3)
    times = [at for at, _ in memory.series]
    assert times == sorted(times) and len(times) >= 2


def test_real_sentences_are_repeated(tmp_path):
    data = write_data("sst2", tmp_path / "data", train=7)
    extraction.write_texts(data, 20, tmp_path / "texts.txt")
    lines = (tmp_path / "texts.txt").read_text().splitlines()
    assert len(lines) == 20
    assert lines[:7] == lines[7:14] and lines[14:] == lines[:6]
    assert len(set(lines)) > 3 and all(lines)


def write_parts(folder, rows, feature=0.5):
    """Parts of so many rows, written ten seconds after each other."""
    folder.mkdir()
    for number, count in enumerate(rows):
        path = folder / f"part-{number:05d}.parquet"
        ids = [f"{number}:{row}" for row in range(count)]
        parquet.write_table(pa.table({"id": ids, "features": [feature] * count}), path)
        os.utime(path, (0, 1000 + 10 * number))
    return folder


def test_rates_and_memory_of_stretches(tmp_path):
    output = write_parts(tmp_path / "whole", [10] * 18 + [20] * 2)
    memory = Memory(100, [(at, 200 + at) for at in range(0, 200, 5)])
    found = extraction.summarize(output, 1000, 195, memory)
    assert (found["texts"], found["distinct_ids"], found["parts"]) == (220, 220, 20)
    # Two parts in twenty seconds; the first stretch, in which everything starts, is left out.
    assert found["texts_per_second"] == [1.0] * 8 + [2.0]
    assert found["last_rate_over_first"] == pytest.approx(
        4 / 3
    )  # the last of three is twice as fast
    assert found["bytes_above_idle"] == [120 + 20 * number for number in range(9)]


def test_other_features_are_not_the_same(tmp_path):
    first = write_parts(tmp_path / "first", [3, 2])
    assert extraction.same_features(first, write_parts(tmp_path / "again", [3, 2]))
    assert not extraction.same_features(first, write_parts(tmp_path / "fewer", [3]))
    assert not extraction.same_features(first, write_parts(tmp_path / "other", [3, 2], 0.25))


@pytest.mark.slow
@pytest.mark.ray
def test_a_long_extraction_is_whole_after_a_kill(tmp_path, repository, subprocess_environment):
    data = write_data("sst2", tmp_path / "data")
    encoder = write_encoder(tmp_path / "encoder")
    command = [sys.executable, "-m", "benchmarks.extraction", "--sentences", str(data)]
    command += ["--model", str(encoder), "--texts", "20000", "--part_bytes", "20000"]
    path = tmp_path / "results.json"
    environment = {k: v for k, v in subprocess_environment.items() if k != "RAY_ADDRESS"}
    subprocess.run(
        [*command, "--json", str(path)], cwd=repository, env=environment, check=True, timeout=500
    )
    results = json.loads(path.read_text())
    assert results["texts"] == results["distinct_ids"] == 20_000
    assert results["same_after_kill"]
    assert 0 < results["killed_after_parts"] < results["parts"]
    assert str(tmp_path) not in path.read_text()


def test_the_tiny_sweep_has_the_first_examples(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    lines = ["Quality\ttext\n", *(f"1\tline {number}\n" for number in range(200))]
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text("\ufeff" + "".join(lines), encoding="utf-8")
    head = write_head(data, tmp_path / "head", TINY_EXAMPLES)
    assert (head / "train.tsv").read_text() == "".join(lines[: TINY_EXAMPLES + 1])
    assert (head / "dev.tsv").read_text() == (head / "train.tsv").read_text()


@pytest.mark.ray
def test_bad_input_is_one_line(tmp_path, capsys, ray_cluster):
    assert main(["--data", str(tmp_path / "none"), "--model", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith("error: ") and "none" in errors[-1]

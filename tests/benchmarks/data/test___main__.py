import json
import subprocess
import sys

import pytest
from small_shards import write_shards

from benchmarks.data import __main__ as data

QUICK = ["--sequence_length", "32", "--tokens", "256", "--rounds", "1", "--steps", "1"]


def test_text_that_is_not_there(capsys):
    assert data.main(["--text", "no/such/file.txt"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_shards_that_are_not_there(tmp_path, capsys):
    assert data.main(["--shards", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_machine_with_shards_needs_no_ray(tmp_path, repository):
    shards, path = write_shards(tmp_path / "shards"), tmp_path / "result.json"
    arguments = ["--shards", str(shards), *QUICK, "--json", str(path)]
    program = (
        "import sys\n"
        "from benchmarks.data import __main__ as data, loading\n"
        "loading.ALONE_SECONDS, loading.ALONE_ROUNDS = 0.0, 1\n"
        f"assert data.main({arguments}) == 0\n"
        "unwanted = {'ray', 'mlflow', 'pyarrow', 'sentencex', 'transformers', 'matplotlib'}\n"
        "assert not unwanted & set(sys.modules), unwanted & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=repository)
    result = json.loads(path.read_text())
    assert set(result) == {"loading"}
    assert result["loading"]["settings"]["tokens"] == 256


@pytest.mark.ray
def test_a_fresh_corpus_is_prepared_and_loaded(tmp_path, repository):
    """In a process of its own, which has a cluster of its own."""
    text, path = tmp_path / "a.txt", tmp_path / "result.json"
    sentence = "The {} cat sat on a mat of {} threads. Dogs run far away from {}."
    text.write_text("\n\n".join(sentence.format(n, n + 1, 7 * n) for n in range(3000)))
    arguments = ["--text", str(text), "--megabytes", "0.2", "--repeats", "1", *QUICK]
    program = (
        "import sys\n"
        "from benchmarks.data import __main__ as data, loading\n"
        "loading.ALONE_SECONDS, loading.ALONE_ROUNDS = 0.0, 1\n"
        f"sys.exit(data.main({[*arguments, '--json', str(path)]}))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=repository)
    result = json.loads(path.read_text())
    assert len(result["arms"]) == 4
    assert all(arm["ratio"] > 0 for name, arm in result["arms"].items() if name != "ours")
    assert result["loading"]["shard_tokens"] < result["tokens"], "held-out text is not trained on"


@pytest.mark.slow
@pytest.mark.ray
def test_preparing_is_fast_and_small(tmp_path, repository, shared_data):
    """0.85 of the rate of the libraries alone, under 1.5 GB above the idle cluster for 100 MB."""
    path = tmp_path / "result.json"
    text = shared_data / "text" / "wikipedia-aa.txt.xz"
    command = [sys.executable, "-m", "benchmarks.data", "--text", str(text), "--json", str(path)]
    subprocess.run([*command, "--repeats", "1", "--rounds", "1"], check=True, cwd=repository)
    result = json.loads(path.read_text())
    assert result["text_bytes"] > 99e6
    assert result["peak_bytes_above_idle_cluster"] < 1.5e9
    arms = result["arms"]
    assert all(arm["ratio"] > 0.85 for name, arm in arms.items() if name != "ours")
    assert result["loading"]["alone"]["least_fill"] >= 0.99

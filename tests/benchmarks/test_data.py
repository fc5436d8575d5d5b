import json
import subprocess
import sys

import pytest

from benchmarks import data


def test_the_arms_must_do_the_same_work():
    data.check_equal(5, 5)
    with pytest.raises(RuntimeError, match="4 tokens, not 5"):
        data.check_equal(4, 5)


def test_text_is_cut_after_whole_documents(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(["twenty bytes of text"] * 10))
    num_bytes = data.cut_corpus(str(text), 70 / 1e6, tmp_path / "corpus.jsonl")
    assert num_bytes == 80
    (documents,) = data.pieces(tmp_path / "corpus.jsonl")
    assert documents == ["twenty bytes of text"] * 4


def test_text_that_is_not_there(capsys):
    assert data.main(["--text", "no/such/file.txt"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.ray
def test_preparing_is_fast_and_small(tmp_path, repository, shared_data):
    """0.85 of the rate of the libraries alone, under 1.5 GB above the idle cluster for 100 MB."""
    path = tmp_path / "result.json"
    text = shared_data / "text" / "wikipedia-aa.txt.xz"
    command = [sys.executable, "-m", "benchmarks.data", "--text", str(text), "--json", str(path)]
    subprocess.run([*command, "--repeats", "1"], check=True, cwd=repository)
    result = json.loads(path.read_text())
    assert result["text_bytes"] > 99e6
    assert result["peak_bytes_above_idle_cluster"] < 1.5e9
    arms = result["arms"]
    assert all(arm["ratio"] > 0.85 for name, arm in arms.items() if name != "ours")

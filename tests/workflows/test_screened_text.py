"""Prepared text of which documents are dropped: near-duplicates and other rules of `prepare.py`."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_core.text.shards import read_index, verify_shards
from workflows import prepare

COMMAND = Path(prepare.__file__)


def write_texts(folder, num_files=3, num_documents=40):
    """Text files; every fourth document but the first few is nearly one of the file before."""
    draw = random.Random(4)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(3000)]
    folder.mkdir(parents=True, exist_ok=True)
    before, paths = [], []
    for number in range(num_files):
        documents = []
        for place in range(num_documents):
            if before and place % 4 == 0:
                document = before[place].replace(".", ", indeed.", 1)
            else:
                sentences = (" ".join(draw.choices(words, k=12)).capitalize() for _ in range(9))
                document = ". ".join(sentences) + "."
            documents.append(document)
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text("\n\n".join([*documents, "The same in every file."]))
        before = [documents[place - 1] for place in range(num_documents)]
    return [str(path) for path in paths]


def run(capsys, *arguments):
    code = prepare.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def plan_of(**values):
    settings = prepare.PrepareSettings(text=[__file__], output="out", **values)
    return prepare._plan_of(settings, [])["settings"]


def test_options_that_are_not_used_leave_the_plan_of_earlier_folders():
    assert sorted(plan_of()) == [
        "alphabet_coverage",
        "cased",
        "heldout_share",
        "language",
        "shard_tokens",
        "strict",
        "text",
        "text_column",
        "tokenizer",
        "tokenizer_sample_bytes",
        "vocabulary_size",
    ]
    assert plan_of(near_duplicates=0.8)["near_duplicates"] == 0.8
    assert plan_of(quality=["c4"])["quality"] == ["c4"]


def test_evaluation_data_that_changes_changes_the_plan(tmp_path):
    (tmp_path / "dev.tsv").write_text("a")
    settings = prepare.PrepareSettings(text=["a"], output="out", exclude=[f"mrpc={tmp_path}"])
    before = prepare._plan_of(settings, [])
    assert prepare._plan_of(settings, []) == before
    (tmp_path / "dev.tsv").write_text("ab")
    assert prepare._plan_of(settings, []) != before


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (("--quality", "gohper"), "did you mean gopher"),
        (("--keep_languages", "english"), "no such language"),
        (("--exclude", "mrpc=nowhere"), "no such file or folder"),
        (("--exclude", "mrpc"), "--exclude"),
        (("--near_duplicates", "0.2"), "near_duplicates"),
        (("--scrub", "names"), "scrub"),
    ],
)
def test_rules_that_cannot_be_applied_are_refused(option, expected, tmp_path, capsys):
    (path,) = write_texts(tmp_path / "texts", 1)
    code, _, err = run(capsys, "--text", path, "--output", tmp_path / "out", *option)
    assert code == 2 and err.count("\n") == 1 and expected in err
    assert not (tmp_path / "out").exists()


def test_a_missing_library_is_named_with_what_installs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bert_core.errors.find_spec", lambda _: None)
    (path,) = write_texts(tmp_path / "texts", 1)
    output = tmp_path / "out"
    code, _, err = run(capsys, "--text", path, "--output", output, "--near_duplicates", 0.8)
    assert code == 2 and err.count("\n") == 1 and "pip install -e '.[corpus]'" in err
    assert not output.exists()


@pytest.mark.ray
def test_the_same_documents_are_dropped_for_any_number_of_workers(tmp_path, capsys, ray_cluster):
    paths = write_texts(tmp_path / "texts")
    more = tmp_path / "texts" / "more.txt"
    quoted = ". ".join(Path(paths[0]).read_text().split(". ")[1:3])
    more.write_text("Write to ann@example.org for more.\n\nAn if (x) { y } of code.")
    (tmp_path / "mrpc").mkdir()
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    row = f"1\ta\tb\t{quoted} and the rest\tnothing"
    (tmp_path / "mrpc" / "dev.tsv").write_text(f"{header}\n{row}\n")
    command = ["--text", *paths, more, "--vocabulary_size", 800, "--near_duplicates", 0.7]
    command += ["--quality", "c4_curly_bracket", "--scrub", "email"]
    command += ["--exclude", f"mrpc={tmp_path / 'mrpc'}", "--report"]
    for workers in (1, 3):
        code, out, err = run(
            capsys, *command, "--output", tmp_path / f"{workers}", "--num_workers", workers
        )
        assert code == 0, err
        assert "near duplicate documents" in out and "scrubbed email" in out
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    counts = verify_shards(tmp_path / "1").counts
    dropped = {
        "near_duplicate_documents": 20,
        "duplicate_documents": 2,
        "c4_curly_bracket": 1,
        "documents_in_evaluation_data": 1,
        "scrubbed_email": 1,
    }
    assert {name: counts[name] for name in dropped} == dropped
    page = (tmp_path / "1" / "prepare-report.html").read_text()
    assert "101 of 125 documents kept (80.8%)" in page
    for name in ("near_duplicate_documents", "c4_curly_bracket", "duplicate_documents", "kept"):
        assert f"Examples of {name}" in page
    assert "Examples of c4_curly_bracket (1)" in page and "An if (x) { y } of code." in page
    splits = read_index(tmp_path / "1").splits
    kept = sum(entry.num_documents for split in splits.values() for entry in split)
    assert kept == 3 * 41 + 2 - 24


def killed(ray_cluster, command, output, moment):
    """Starts the command and kills it when a file is there."""
    process = subprocess.Popen(
        [sys.executable, str(COMMAND), *map(str, command), "--output", str(output)],
        env=os.environ | {"RAY_ADDRESS": ray_cluster},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list((output / ".preparing").glob(moment)):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.ray
def test_killed_at_any_step_the_same_command_finishes(tmp_path, capsys, ray_cluster):
    paths = write_texts(tmp_path / "texts", num_files=6, num_documents=250)
    command = ["--text", *paths, "--vocabulary_size", 2000, "--near_duplicates", 0.7]
    command += ["--quality", "gopher_length", "--scrub", "email", "--report"]
    assert run(capsys, *command, "--output", tmp_path / "whole")[0] == 0
    output = tmp_path / "killed"
    for moment in ("screened/*.dropped.npy", "near_duplicates.npy", "statistics/*", "encoded/*"):
        killed(ray_cluster, command, output, moment)
    assert (output / ".preparing").is_dir()
    assert run(capsys, *command, "--output", output)[0] == 0
    assert contents(output) == contents(tmp_path / "whole")

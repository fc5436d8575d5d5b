"""The command that prepares text, and the plan and parts that it is made of."""

import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.text.shards import (
    PARTS,
    FileEntry,
    ShardEntry,
    open_shards,
    read_index,
    verify_shards,
)
from bert_core.text.sources import CorpusPart
from bert_core.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash
from bert_core.tokenizer_training import train_tokenizer
from workflows import preparation, prepare
from workflows.preparation import Preparation, _groups

COMMAND = Path(prepare.__file__)


def write_texts(folder, num_files=3, num_documents=20, seed=0):
    """Text files of different kinds, with some documents that are repeated."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(3000)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(num_files):
        documents = [
            "\n".join(
                ". ".join(" ".join(draw.choices(words, k=9)).capitalize() for _ in range(4)) + "."
                for _ in range(3)
            )
            for _ in range(num_documents)
        ]
        text = "\n\n".join([*documents, documents[0], "The same in every file."])
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text(text)
    last = paths[-1]
    paths[-1] = last.with_name(f"{last.name}.gz")
    paths[-1].write_bytes(gzip.compress(last.read_bytes()))
    last.unlink()
    return [str(path) for path in paths]


def run(capsys, *arguments):
    code = prepare.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def refused(capsys, output, *arguments):
    """Runs a command that must fail in one line and leave nothing; returns the line."""
    existed = Path(output).exists()
    code, out, err = run(capsys, *arguments, "--output", output)
    lines = [line for line in err.splitlines() if "  done in " not in line]
    assert code == 2 and out == "" and len(lines) == 1
    assert Path(output).exists() == existed
    assert not existed or not (Path(output) / ".preparing").exists()
    return lines[0]


def test_the_command_line_is_checked(tmp_path, capsys):
    (path,) = write_texts(tmp_path / "texts", 1)
    output = tmp_path / "out"
    assert "vocabulary_size" in refused(capsys, output, "--text", path, "--vocabulary_sise", 9000)
    assert "heldout_share" in refused(capsys, output, "--text", path, "--heldout_share", 1.5)
    code, _, err = run(capsys, "--output", output)
    assert code == 2 and "text" in err and err.count("\n") == 1
    bytes_of = ["--text", path, "--tokenizer_kind", "bpe"]
    assert "leave out --alphabet_coverage" in refused(
        capsys, output, *bytes_of, "--alphabet_coverage", 0.9
    )
    assert "raise --vocabulary_size" in refused(capsys, output, *bytes_of, "--vocabulary_size", 260)
    assert "no tokenizer is trained" in refused(capsys, output, *bytes_of, "--tokenizer", tmp_path)
    given = ["--text", path, "--tokenizer", tmp_path]
    for option in (
        ["--vocabulary_size", 9000],
        ["--cased"],
        ["--alphabet_coverage", 0.9],
        ["--tokenizer_sample_bytes", 10],
    ):
        assert f"leave out {option[0]}" in refused(capsys, output, *given, *option)


def test_input_that_cannot_be_used_is_refused_before_anything_starts(tmp_path, capsys):
    (path,) = write_texts(tmp_path / "texts", 1)
    output = tmp_path / "out"
    assert "no such file" in refused(capsys, output, "--text", tmp_path / "absent.txt")
    assert "no such package" in refused(capsys, output, "--text", "docs://no_such_package")
    line = refused(capsys, output, "--text", path, "--tokenizer", tmp_path / "absent")
    assert "no tokenizer" in line
    (tmp_path / "bpe").mkdir()
    tokenizer = train_tokenizer("bpe", ["some text"] * 3, 300, lowercase=True)
    save_tokenizer(tokenizer, tmp_path / "bpe" / "tokenizer.json")
    more = ("--tokenizer", tmp_path / "bpe", "--new_pieces", 9)
    assert "only WordPiece" in refused(capsys, output, "--text", path, *more)


def test_output_folders_that_hold_something_else_are_refused(tmp_path, capsys):
    (path,) = write_texts(tmp_path / "texts", 1)
    assert "holds other files" in refused(capsys, tmp_path, "--text", path)
    assert "holds other files" in refused(capsys, tmp_path, "--text", path, "--fresh")
    assert "is a file" in refused(capsys, path, "--text", path)
    assert "not a folder" in refused(capsys, Path(path) / "out", "--text", path)


def test_no_permission_to_write_or_read(capsys, open_folder, nobody):
    (open_folder / "a.txt").write_text("Some text.")
    (open_folder / "secret.txt").write_text("Some text.")
    (open_folder / "secret.txt").chmod(0)
    open_folder.chmod(0o555)
    with nobody():
        line = refused(capsys, open_folder / "out", "--text", open_folder / "a.txt")
        secret = refused(capsys, open_folder / "out", "--text", open_folder / "secret.txt")
    assert "no permission to read" in secret
    assert "no permission to write" in line


@pytest.mark.ray
def test_text_becomes_shards(tmp_path, capsys, ray_cluster):
    paths = write_texts(tmp_path / "texts")
    output = tmp_path / "out"
    settings = ["--vocabulary_size", 800, "--heldout_share", 0.1, "--shard_tokens", 3000]
    code, out, err = run(capsys, "--text", *paths, "--output", output, *settings)
    assert code == 0, err
    index = verify_shards(output)
    assert index.counts["documents_read"] == 3 * 22
    assert index.counts["duplicate_documents"] == 3 + 2
    train, heldout = open_shards(output), open_shards(output, "heldout")
    assert train.num_documents + heldout.num_documents == 61
    assert len(train.shards) > 1 and heldout.num_documents > 0
    tokenizer = load_tokenizer(output)
    assert tokenizer_hash(tokenizer) == train.tokenizer_hash
    counts = np.load(output / "token_counts.npy", allow_pickle=False)
    assert counts.sum() == train.num_tokens and counts.shape == (tokenizer.get_vocab_size(),)
    assert "trained on 0.0 MB of whole documents drawn by hash" in out
    assert "duplicate documents" in out and "unknown tokens: 0 (0.0000%)" in out
    assert sorted(path.name for path in output.iterdir() if path.name.startswith(".")) == []
    first = train.shards[0]
    text = tokenizer.decode(first.tokens[: first.sentences[1]].tolist())
    assert text.replace(" ", "") in Path(paths[0]).read_text().lower().replace(" ", "")
    assert [source["num_documents"] for source in index.sources] == [22, 22, 22]


@pytest.mark.ray
def test_bytes_and_likeliest_pieces_may_be_trained(tmp_path, capsys, ray_cluster):
    paths = write_texts(tmp_path / "texts")
    whole = ("--alphabet_coverage", 1)
    for kind, model, own in (("bpe", "BPE", ()), ("unigram", "Unigram", whole)):
        output = tmp_path / kind
        code, out, err = run(
            capsys,
            *("--text", *paths, "--output", output, "--vocabulary_size", 800),
            *("--tokenizer_kind", kind, "--cased", *own),
        )
        assert code == 0 and "unknown tokens: 0 (0.0000%)" in out, err
        verify_shards(output)
        tokenizer = load_tokenizer(output)
        assert json.loads(tokenizer.to_str())["model"]["type"] == model
        shard = open_shards(output).shards[0]
        sentence = tokenizer.decode(shard.tokens[: shard.sentences[1]].tolist()).strip()
        assert sentence in Path(paths[0]).read_text()


@pytest.mark.ray
def test_paths_may_be_relative_but_not_in_a_job(tmp_path, capsys, monkeypatch, ray_cluster):
    """Tasks do not run in the folder of the command."""
    write_texts(tmp_path / "texts", 2)
    monkeypatch.chdir(tmp_path)
    command = ["--text", "texts/*", "--output", "out", "--vocabulary_size", 300]
    assert run(capsys, *command)[0] == 0
    assert read_index("out").sources[0]["text"] == "texts/*"
    assert str(tmp_path) not in Path("out/index.json").read_text()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    code, _, err = run(capsys, *command)
    assert code == 2 and "give an absolute --output" in err


@pytest.mark.ray
def test_the_result_is_the_same_for_any_number_of_workers(tmp_path, capsys, ray_cluster):
    paths = write_texts(tmp_path / "texts", 4)
    settings = ["--text", *paths, "--vocabulary_size", 800]
    for workers in (1, 3):
        code, _, err = run(
            capsys, *settings, "--output", tmp_path / f"{workers}", "--num_workers", workers
        )
        assert code == 0, err
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


@pytest.mark.ray
def test_a_finished_folder_is_found_and_another_plan_refused(tmp_path, capsys, ray_cluster):
    (path,) = write_texts(tmp_path / "texts", 1)
    output = tmp_path / "out"
    command = ["--text", path, "--output", output, "--vocabulary_size", 300]
    assert run(capsys, *command)[0] == 0
    before = contents(output)
    code, out, _ = run(capsys, *command, "--num_workers", 1)
    assert code == 0 and "complete already" in out and contents(output) == before
    code, _, err = run(capsys, *command, "--cased")
    assert code == 2 and "cased: False -> True" in err
    assert run(capsys, *command, "--cased", "--fresh")[0] == 0
    assert contents(tmp_path / "out.old-1") == before
    assert read_index(output).settings["cased"] is True
    os.utime(path, (1, 1))
    code, _, err = run(capsys, *command, "--cased")
    assert code == 2 and "files it is made of have changed" in err


@pytest.mark.ray
def test_text_that_turns_out_to_be_wrong_leaves_nothing(tmp_path, capsys, ray_cluster):
    output = tmp_path / "out"
    (tmp_path / "bad.txt").write_bytes(b"good words\nbad \xff byte\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "a.jsonl").write_text('{"body": "x"}')
    line = refused(capsys, output, "--text", tmp_path / "bad.txt", "--strict")
    assert "invalid UTF-8" in line and "bad.txt, byte 15" in line
    assert "empty corpus" in refused(capsys, output, "--text", tmp_path / "empty.txt")
    assert "for example body" in refused(capsys, output, "--text", tmp_path / "a.jsonl")
    (tmp_path / "wide.txt").write_text(" ".join(chr(code) for code in range(0x3A0, 0x500)))
    command = ["--text", tmp_path / "wide.txt", "--vocabulary_size", 100]
    assert "larger vocabulary" in refused(capsys, output, *command)


@pytest.mark.ray
def test_invalid_utf8_is_replaced_and_counted(tmp_path, capsys, ray_cluster):
    (path,) = write_texts(tmp_path / "texts", 1)
    (tmp_path / "bad.txt").write_bytes(b"some words \xff\xff and more words\n")
    command = ["--text", path, tmp_path / "bad.txt", "--vocabulary_size", 300]
    code, out, _ = run(capsys, *command, "--output", tmp_path / "out")
    assert code == 0
    assert read_index(tmp_path / "out").counts["invalid_utf8_characters_replaced"] == 2
    assert "invalid utf8 characters replaced" in out


def test_words_that_are_too_long_are_warned_about_however_few_tokens_they_are():
    counts = {"documents_read": 2, "characters_read": 1000, "documents_of_one_sentence": 0}
    counts |= {"characters": 1000, "unknown_tokens": 50, "characters_of_words_too_long": 200}
    entry = SimpleNamespace(num_documents=2, num_sentences=9, num_tokens=300)
    index = SimpleNamespace(splits={"train": [entry]}, counts=counts, vocab_size=9, settings={})
    (warning,) = [line for line in prepare.describe(index) if line.startswith("warning")]
    assert "20.0% of the characters are in words longer than 100" in warning
    assert "put spaces between words" in warning
    counts["characters_of_words_too_long"] = 0
    (warning,) = [line for line in prepare.describe(index) if line.startswith("warning")]
    assert "16.7% of the tokens are unknown; raise --alphabet_coverage" in warning


@pytest.mark.ray
def test_text_that_makes_a_poor_encoder_is_warned_about_and_the_remedy_works(
    tmp_path, capsys, ray_cluster
):
    """6,000 characters about as frequent as those of Chinese, each document one sentence."""
    draw = random.Random(3)
    characters = [chr(0x4E00 + 3 * rank) for rank in range(6000)]
    weights = [(1 / (rank + 60)) ** 1.3 for rank in range(6000)]
    sentences = ["".join(draw.choices(characters, weights, k=30)) + "。" for _ in range(2000)]
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(sentences))
    command = ["--text", text, "--output", tmp_path / "out", "--language", "zh"]
    code, out, _ = run(capsys, *command, "--alphabet_coverage", 0.5)
    assert code == 0
    unknown, single = [line for line in out.splitlines() if line.startswith("warning")]
    assert "raise --alphabet_coverage above 0.5 and add --fresh" in unknown
    assert "2,000 of 2,000 documents have one sentence" in single
    text.write_text("\n\n".join("\n".join(sentences[n : n + 10]) for n in range(0, 2000, 10)))
    code, out, _ = run(capsys, *command, "--fresh")
    assert code == 0 and "warning" not in out
    index = read_index(tmp_path / "out")
    tokens = sum(entry.num_tokens for entry in index.splits["train"])
    assert 0 < index.counts["unknown_tokens"] < 0.001 * tokens


@pytest.mark.ray
def test_a_vocabulary_larger_than_uint16(tmp_path, capsys, ray_cluster):
    words = [f"w{n}" for n in range(70_000)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words]))
    (tmp_path / "a.txt").write_text("w1 w69999 w68000.\n\nw2 w3 w66666")
    command = ["--text", tmp_path / "a.txt", "--tokenizer", vocabulary, "--heldout_share", 0]
    assert run(capsys, *command, "--output", tmp_path / "out")[0] == 0
    (shard,) = open_shards(tmp_path / "out").shards
    assert shard.tokens.dtype == np.uint32
    assert shard.tokens.tolist() == [6, 70_004, 68_005, 1, 7, 8, 66_671]
    assert read_index(tmp_path / "out").counts["unknown_tokens"] == 1
    verify_shards(tmp_path / "out")
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *reversed(words)]))
    code, _, err = run(capsys, *command, "--output", tmp_path / "out")
    assert code == 2 and "files it is made of have changed" in err


@pytest.mark.ray
def test_documentation_is_prepared_without_a_file(tmp_path, capsys, ray_cluster):
    command = ["--text", "docs://tokenizers", "docs://pydantic", "--vocabulary_size", 2000]
    code, _, err = run(capsys, *command, "--output", tmp_path / "out")
    assert code == 0, err
    index = read_index(tmp_path / "out")
    import tokenizers

    assert [source["text"] for source in index.sources] == ["docs://tokenizers", "docs://pydantic"]
    assert index.sources[0]["version"] == tokenizers.__version__
    assert index.sources[1]["num_documents"] > 20


def stopped(ray_cluster, command, output, moment, number):
    """Starts the command and sends a signal when a file is there; returns code, output, errors."""
    process = subprocess.Popen(
        [sys.executable, str(COMMAND), *command, "--output", str(output)],
        env=os.environ | {"RAY_ADDRESS": ray_cluster},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not list((output / ".preparing").glob(moment)):
        time.sleep(0.002)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.slow
@pytest.mark.ray
def test_stopped_and_killed_at_any_moment_the_same_command_finishes(tmp_path, capsys, ray_cluster):
    """SIGTERM in the first step, SIGKILL in two later ones, then an undisturbed end."""
    paths = write_texts(tmp_path / "texts", num_files=6, num_documents=250)
    command = ["--text", *paths, "--vocabulary_size", "3000", "--shard_tokens", "50000"]
    assert run(capsys, *command, "--output", tmp_path / "whole")[0] == 0
    output = tmp_path / "stopped"
    code, out, err = stopped(ray_cluster, command, output, "scanned/*.json", signal.SIGTERM)
    assert (code, out) == (130, "")
    first, *progress, last = err.splitlines()
    assert first == f"joining Ray at {ray_cluster}…"
    assert last == "stopped; the same command goes on"
    assert "Traceback" not in err and all(line.startswith("reading") for line in progress), err
    for moment in ("encoded/*.tokens.npy", "joined/*"):
        code, _, _ = stopped(ray_cluster, command, output, moment, signal.SIGKILL)
        assert code == -signal.SIGKILL
    assert (output / ".preparing").is_dir() and not (output / "index.json").exists()
    assert run(capsys, *command, "--output", output)[0] == 0
    assert contents(output) == contents(tmp_path / "whole")


def test_a_cluster_that_is_not_there_is_refused(tmp_path):
    """In a process of its own: this one may be connected already."""
    (path,) = write_texts(tmp_path / "texts", 1)
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody_listens.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, str(COMMAND), "--text", path, "--output", str(tmp_path / "out")],
            env=os.environ | {"RAY_ADDRESS": address},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2, done.stderr
    *_, line = done.stderr.splitlines()
    assert line.startswith("error: no Ray cluster answers") and address in line
    assert not (tmp_path / "out").exists()


@pytest.mark.ray
def test_two_processes_do_not_share_a_folder(tmp_path, capsys, ray_cluster):
    import fcntl

    (path,) = write_texts(tmp_path / "texts", 1)
    command = ["--text", path, "--output", tmp_path / "out", "--vocabulary_size", 300]
    settings = prepare.PrepareSettings(text=[path], output=tmp_path / "out", vocabulary_size=300)
    parts = list(prepare.find_parts([path], "text", prepare.Counter()))
    work = tmp_path / "out" / ".preparing"
    work.mkdir(parents=True)
    (work / "plan.json").write_text(json.dumps(prepare._plan_of(settings, parts)))
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = run(capsys, *command)
        assert code == 2 and "another process" in err
    assert run(capsys, *command)[0] == 0


def entry(num_tokens):
    name = str(num_tokens)
    files = {f"{name}.{part}.npy": FileEntry(num_bytes=1, sha256="0" * 64) for part in PARTS}
    return ShardEntry(
        name=name, num_documents=1, num_sentences=1, num_tokens=num_tokens, files=files
    )


def test_consecutive_pieces_are_joined_until_a_shard_is_full():
    sizes = [30, 80, 100, 5, 5, 5]
    groups = [[each.num_tokens for each in group] for group in _groups(map(entry, sizes), 100)]
    assert groups == [[30, 80], [100], [5, 5, 5]]
    assert list(_groups([], 100)) == []


def plan(folder, parts, **settings):
    values = {
        "tokenizer": None,
        "vocabulary_size": 200,
        "cased": False,
        "alphabet_coverage": 0.9995,
        "tokenizer_sample_bytes": 10**6,
        "heldout_share": 0.1,
        "shard_tokens": 100,
        "strict": False,
        "text_column": "text",
        "language": "en",
        "num_workers": 2,
        "logged_settings": {"a": 1},
    }
    output = folder / "out"
    (output / "work").mkdir(parents=True)
    return Preparation(output=output, work=output / "work", parts=parts, **(values | settings))


def test_unfinished_work_of_an_older_version_is_not_mixed_with_new(tmp_path):
    (tmp_path / "encoded").mkdir()
    (tmp_path / "encoded" / "000000-00000.json").write_text("{}")
    for name in ("plan.json", "lock", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    preparation.discard_older_work(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "lock", "version"}
    (tmp_path / "encoded").mkdir()
    preparation.discard_older_work(tmp_path)
    assert (tmp_path / "encoded").is_dir(), "it is of this version"


@pytest.mark.ray
def test_all_steps_in_order(tmp_path, ray_cluster):
    texts = [f"Document {n} of {n % 7} words. It says no more.\n\n" for n in range(60)]
    parts = []
    for number in range(3):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(texts[number * 20 : number * 20 + 20]))
        parts.append(CorpusPart(f"{number}.txt", "text", str(path), path.stat().st_size))
    index = preparation.run(plan(tmp_path, parts))
    assert index.settings == {"a": 1}
    assert [source["text"] for source in index.sources] == ["0.txt", "1.txt", "2.txt"]
    train, heldout = open_shards(tmp_path / "out"), open_shards(tmp_path / "out", "heldout")
    assert train.num_documents + heldout.num_documents == 60
    assert [shard.name for shard in train.shards] == ["train-00000", "train-00001", "train-00002"]
    assert {path.name for path in (tmp_path / "out" / "work").iterdir()} >= {"scanned", "encoded"}

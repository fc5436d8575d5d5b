"""Text preparation next to the libraries alone, and loading with and without the loader."""

import json
import os
import subprocess
import sys
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import data, preparation
from benchmarks.data import LoadingSettings, measure_loading, print_loading
from bert_core.errors import UserError
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.text.batches import BatchSource
from bert_core.text.encoding import split_sentences
from bert_core.text.shards import ShardIndex, write_index, write_shard
from bert_core.tokenizer import save_tokenizer, wordpiece_tokenizer
from bert_core.tokenizer_training import train_wordpiece

VOCABULARY = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(95))]


def write_shards(folder: Path) -> Path:
    """Two shards of random words in short sentences; returns the folder."""
    random = np.random.default_rng(0)
    entries = [
        write_shard(
            folder,
            f"train-{number:05d}",
            [
                [random.integers(5, 100, random.integers(3, 12)).tolist() for _ in range(12)]
                for _ in range(60)
            ],
            "uint16",
        )
        for number in range(2)
    ]
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    save_tokenizer(wordpiece_tokenizer(ids, lowercase=True), folder / "tokenizer.json")
    index = ShardIndex(
        dtype="uint16", vocab_size=100, tokenizer_sha256="0" * 64, splits={"train": entries}
    )
    write_index(folder, index)
    return folder


QUICK = ["--sequence_length", "32", "--tokens", "256", "--rounds", "1", "--steps", "1"]


@pytest.mark.parametrize("words", [["--text", "no/such/file.txt"], ["--shards", "no/such/folder"]])
def test_missing_input_is_one_line(capsys, words):
    assert data.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_machine_with_shards_needs_no_ray(tmp_path, repository):
    shards, path = write_shards(tmp_path / "shards"), tmp_path / "result.json"
    arguments = ["--shards", str(shards), *QUICK, "--json", str(path)]
    program = (
        "import sys\n"
        "from benchmarks import data\n"
        "data.ALONE_SECONDS, data.ALONE_ROUNDS = 0.0, 1\n"
        f"assert data.main({arguments}) == 0\n"
        "unwanted = {'ray', 'mlflow', 'pyarrow', 'sentencex', 'transformers', 'matplotlib'}\n"
        "assert not unwanted & set(sys.modules), unwanted & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=repository)
    result = json.loads(path.read_text())
    assert set(result) == {"loading"}
    assert result["loading"]["settings"]["tokens"] == 256


@pytest.mark.slow
@pytest.mark.ray
def test_a_fresh_corpus_is_prepared_and_loaded(tmp_path, repository):
    """In a process of its own, which has a cluster of its own, whatever cluster is around."""
    text, path = tmp_path / "a.txt", tmp_path / "result.json"
    sentence = "The {} cat sat on a mat of {} threads. Dogs run far away from {}."
    text.write_text("\n\n".join(sentence.format(n, n + 1, 7 * n) for n in range(3000)))
    arguments = ["--text", str(text), "--megabytes", "0.2", "--repeats", "1", *QUICK]
    program = (
        "import sys\n"
        "from benchmarks import data\n"
        "data.ALONE_SECONDS, data.ALONE_ROUNDS = 0.0, 1\n"
        f"sys.exit(data.main({[*arguments, '--json', str(path)]}))\n"
    )
    environment = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=repository, env=environment)
    result = json.loads(path.read_text())
    assert len(result["arms"]) == 4
    assert all(arm["ratio"] > 0 for name, arm in result["arms"].items() if name != "ours")
    assert result["loading"]["shard_tokens"] < result["tokens"], "held-out text is not trained on"


@pytest.mark.slow
@pytest.mark.ray
def test_preparing_100_mb_is_small_and_the_command_measures_all_of_it(
    tmp_path, repository, shared_data
):
    """Under 1.5 GB above the idle cluster; rates are for the benchmark, not for a test."""
    path = tmp_path / "result.json"
    text = shared_data / "text" / "wikipedia-aa.txt.xz"
    command = [sys.executable, "-m", "benchmarks.data", "--text", str(text), "--json", str(path)]
    subprocess.run([*command, "--repeats", "1", "--rounds", "1"], check=True, cwd=repository)
    result = json.loads(path.read_text())
    assert result["text_bytes"] > 99e6
    assert result["peak_bytes_above_idle_cluster"] < 1.5e9
    arms = result["arms"]
    assert all(arm["ratio"] > 0 for name, arm in arms.items() if name != "ours")
    assert result["loading"]["alone"]["least_fill"] >= 0.99


SETTINGS = LoadingSettings(
    preset="tiny", sequence_length=32, tokens=256, rounds=3, steps=2, warmup_steps=1
)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(data, "ALONE_ROUNDS", 2)
    return write_shards(tmp_path / "shards")


@pytest.mark.slow
def test_every_figure_is_there_and_they_agree(shards, capsys):
    result = measure_loading(shards, SETTINGS)
    assert result["alone"]["tokens_per_second"] > 0
    assert result["alone"]["windows"] == data.ALONE_ROUNDS
    assert 0.9 < result["alone"]["least_fill"] <= result["alone"]["fill"] <= 1
    assert [len(arm["seconds"]) for arm in result["arms"].values()] == [3, 3]
    loaded, staged = (result["arms"][arm]["seconds"] for arm in ("loaded", "staged"))
    ratios = [other / own for own, other in zip(loaded, staged, strict=True)]
    assert result["of_staged_of_rounds"] == pytest.approx(ratios)
    assert result["of_staged"] == pytest.approx(sorted(ratios)[1])
    assert result["first_batch"]["resumed_seconds"] > 0
    print_loading(result)
    assert f"{result['of_staged']:.3f} of the rate" in capsys.readouterr().out


def test_both_arms_train_on_the_same_steps(shards, monkeypatch):
    seen = []

    def counting(vocab_size, feed, settings):
        for batches in feed:
            seen.append([batch.input_ids.clone() for batch in batches.micro_batches])
            yield

    monkeypatch.setattr(data, "training_run", counting)
    data.trained_with_either(shards, SETTINGS)
    turns = [seen[:1], seen[1:2]]
    turns += [seen[begin : begin + 2] for begin in range(2, len(seen), 2)]
    assert len(turns) == 2 * (1 + SETTINGS.rounds)
    for one, other in zip(turns[::2], turns[1::2], strict=True):
        assert_equal_steps(one, other)
    assert not torch.equal(turns[0][0][0], turns[2][0][0])


def assert_equal_steps(one, other):
    for step, same in zip(one, other, strict=True):
        for batch, equal in zip(step, same, strict=True):
            assert torch.equal(batch, equal)


@pytest.mark.slow
def test_a_loader_that_is_slow_is_seen(shards, monkeypatch):
    """Each step takes it longer than a step of training: the ratio is of both times."""
    steps = BatchSource.steps

    def slow(self, first, **options):
        for batches in steps(self, first, **options):
            data.time.sleep(0.6)  # a step takes less, on a loaded machine too
            yield batches

    monkeypatch.setattr(BatchSource, "steps", slow)
    assert data.trained_with_either(shards, SETTINGS)["of_staged"] < 0.8


@pytest.mark.slow
def test_the_training_run_learns(shards):
    feed = data.Feed()
    feed.source = repeat(data.batch_source(shards, SETTINGS).step(0))
    run = data.training_run(100, feed, SETTINGS)
    losses = [float(result.loss) for result in islice(run, 20)]
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])


def test_more_tokens_than_a_row_are_needed(shards):
    with pytest.raises(UserError, match="--tokens"):
        measure_loading(shards, LoadingSettings(sequence_length=128, tokens=100))


TEXT = "The cat sat on a mat. Dogs run far away."


def test_the_arms_must_do_the_same_work():
    preparation.check_equal(5, 5)
    with pytest.raises(RuntimeError, match="4 tokens, not 5"):
        preparation.check_equal(4, 5)


def test_text_is_cut_after_whole_documents(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(["twenty bytes of text"] * 10))
    num_bytes = preparation.cut_corpus(str(text), 70 / 1e6, tmp_path / "corpus.jsonl")
    assert num_bytes == 80
    (documents,) = preparation.pieces(tmp_path / "corpus.jsonl")
    assert documents == ["twenty bytes of text"] * 4


def test_the_arms_of_the_libraries_count_the_same_tokens(tmp_path):
    tokenizer = train_wordpiece([TEXT] * 3, 60, lowercase=True)
    path, corpus = tmp_path / "tokenizer.json", tmp_path / "corpus.jsonl"
    save_tokenizer(tokenizer, path)
    corpus.write_text(json.dumps({"text": TEXT}) + "\n")
    expected = sum(
        len(tokenizer.encode(sentence, add_special_tokens=False))
        for sentence in split_sentences(TEXT)
    )
    assert preparation.segment_and_encode(([TEXT], str(path))) == expected
    split, encoding = preparation.timed_threads(corpus, path, expected)
    assert split > 0 and encoding > 0
    with pytest.raises(RuntimeError, match="the arms differ"):
        preparation.timed_threads(corpus, path, expected + 1)

"""Embeddings next to the peers', and the encoders and texts they are measured with."""

import json
import random
import sys
from shlex import quote, split

import numpy as np
import pytest
from small_tasks import WORDS, write_data, write_encoder

from benchmarks import features
from benchmarks.inputs import fresh_encoder
from bert_core.config import SIZES
from bert_core.model_folder import load_model_folder


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Sets the command line: small texts, a small encoder."""
    data, encoder = write_data("sst2", tmp_path / "data"), write_encoder(tmp_path / "encoder")
    choose = random.Random(3)
    lines = [" ".join(choose.choices(WORDS, k=choose.randint(10, 500))) for _ in range(60)]
    (tmp_path / "paragraphs.txt").write_text("\n".join(lines))

    def give(more=""):
        line = (
            f"benchmark --sentences {data} --paragraphs {tmp_path / 'paragraphs.txt'}"
            f" --model {encoder} --texts 12 --rounds 3 {more}"
        )
        monkeypatch.setattr(sys, "argv", split(line))

    return give


def test_ours_beside_both_peers(command, tmp_path, capsys):
    path = tmp_path / "results.json"
    command(f"--json {path} --max_tokens 700 --peers sentence-transformers transformers")
    features.main()
    results = json.loads(path.read_text())
    assert list(results["arms"]) == ["ours", "sentence-transformers", "transformers"]
    assert results["num_texts"] == 24
    assert results["settings"]["max_tokens"] == 700
    assert 200 < results["longest"] <= 384  # those of 500 words would be cut
    assert results["largest_difference"] < 1e-5
    ours = results["arms"]["ours"]["seconds_of_rounds"]
    assert len(ours) == 3
    for name, ratio in results["ratios"].items():
        theirs = results["arms"][name]["seconds_of_rounds"]
        assert ratio == sorted(slow / fast for slow, fast in zip(theirs, ours, strict=True))[1]
    assert str(tmp_path) not in path.read_text()
    assert (
        f"ours is {results['ratios']['transformers']:.2f} times as fast" in capsys.readouterr().out
    )


@pytest.mark.slow
def test_exported_graphs_are_peers(command, tmp_path):
    path = tmp_path / "results.json"
    command(f"--json {path} --peers")
    features.main()
    assert list(json.loads(path.read_text())["arms"]) == ["ours"]
    command(f"--json {path} --peers {' '.join(map(quote, features.ENGINES))}")
    assert features.main() == 0
    results = json.loads(path.read_text())
    assert {*results["arms"]} == {"ours", *features.ENGINES}
    assert results["ratios"].keys() == features.ENGINES.keys()
    assert results["largest_difference"] < 1e-5  # those in int8 differ by more


def test_vectors_that_differ_are_no_benchmark(command, monkeypatch):
    command()
    wrong = {"peer": lambda: lambda texts: np.ones((len(texts), 32), np.float32)}
    monkeypatch.setattr(features, "peers", lambda *_: wrong)
    with pytest.raises(AssertionError, match="peer"):
        features.main()


def test_a_peer_that_fails_costs_no_other_its_figures(command, monkeypatch, tmp_path):
    path = tmp_path / "results.json"
    command(f"--json {path} --peers sentence-transformers transformers")
    monkeypatch.setattr(features, "sentence_transformers_arm", lambda *_: 1 / 0)
    assert features.main() == 1
    results = json.loads(path.read_text())
    assert list(results["arms"]) == ["ours", "transformers"]
    assert results["failed"].keys() == {"sentence-transformers"}


def test_a_peer_that_is_not_installed_is_left_out(command, monkeypatch, capsys):
    command("--size tiny --peers sentence-transformers transformers")
    monkeypatch.setattr(features.importlib.util, "find_spec", lambda _: None)
    features.main()
    out = capsys.readouterr().out
    assert "sentence-transformers is not installed: left out" in out
    assert "2 layers, 128 wide" in out


def test_the_padding_of_batches_of_32():
    lengths = [10] * 16 + [20] * 16 + [5]
    assert features.padding_share(lengths, 32) == pytest.approx(1 - 485 / 645)


def test_a_fresh_encoder_has_the_vocabulary_of_the_model(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    config, _, _ = load_model_folder(fresh_encoder(encoder, "tiny", tmp_path / "fresh"))
    assert config.vocab_size == load_model_folder(encoder)[0].vocab_size
    assert config.num_hidden_layers == SIZES["tiny"].num_hidden_layers


def test_a_tokenizer_alone_is_enough(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    (tmp_path / "vocabulary").mkdir()
    (encoder / "tokenizer.json").rename(tmp_path / "vocabulary" / "tokenizer.json")
    config, _, tokenizer = load_model_folder(
        fresh_encoder(tmp_path / "vocabulary", "tiny", tmp_path / "fresh")
    )
    assert config.vocab_size == tokenizer.get_vocab_size()

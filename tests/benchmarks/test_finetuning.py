import json
import sys

import pytest
from small_tasks import write_data, write_encoder

from benchmarks import finetuning


def test_whole_passes_of_both_arms_are_timed(tmp_path, monkeypatch, capsys):
    data, encoder = write_data("squad", tmp_path / "data"), write_encoder(tmp_path / "encoder")
    path = tmp_path / "folder" / "results.json"
    command = (
        f"benchmark --task squad --data {data} --model {encoder} --examples 20 --batch 4 "
        f"--passes 2 --json {path}"
    )
    monkeypatch.setattr(sys, "argv", command.split())
    finetuning.main()
    results = json.loads(path.read_text())
    assert results["difference"] < 1e-5
    assert results["items"] == 20 and 3 <= results["mean_length"] <= results["longest"]
    arms = results["arms"]
    assert list(arms) == ["ours", "transformers"]
    for arm in arms.values():
        assert len(arm["seconds_of_passes"]) == 2
        rates = [20 / seconds for seconds in arm["seconds_of_passes"]]
        assert min(rates) <= arm["examples_per_second"] <= max(rates)
    ours, theirs = (arm["seconds_of_passes"] for arm in arms.values())
    ratios = [slow / fast for slow, fast in zip(theirs, ours, strict=True)]
    assert results["ratios_of_passes"] == pytest.approx(ratios)
    assert str(tmp_path) not in path.read_text()
    assert f"ours is {results['ratio']:.2f} times as fast" in capsys.readouterr().out


def test_arms_that_disagree_are_no_benchmark(tmp_path, monkeypatch):
    data, encoder = write_data("mrpc", tmp_path / "data"), write_encoder(tmp_path / "encoder")
    monkeypatch.setattr(finetuning, "their_outputs", lambda *_: 5.0)
    command = f"benchmark --task mrpc --data {data} --model {encoder} --examples 8 --batch 4"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(AssertionError, match="the arms' answers differ"):
        finetuning.main()


def test_a_pass_is_timed_to_its_last_step():
    made = []
    arms = [finetuning.Arm(name, lambda name=name: made.append(name)) for name in ("a", "b")]
    finetuning.time_pass(arms, 12, finetuning.torch.device("cpu"))
    assert made.count("a") == made.count("b") == 12
    # Turns of five steps; who begins changes.
    assert made[:10] == ["b"] * 5 + ["a"] * 5 and made[10:20] == ["a"] * 5 + ["b"] * 5


def test_a_fresh_encoder_has_the_vocabulary_of_the_model(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    words = f"--task mrpc --data x --model {encoder} --size tiny".split()
    folder = finetuning.fresh_encoder(finetuning.parse_arguments(words), tmp_path)
    config, _, _ = finetuning.load_model_folder(folder)
    assert config.vocab_size == finetuning.load_model_folder(encoder)[0].vocab_size
    assert config.num_hidden_layers == finetuning.SIZES["tiny"].num_hidden_layers

import json
import sys

import pytest
from small_tasks import write_data, write_encoder

from benchmarks.finetuning import __main__ as finetuning
from benchmarks.finetuning import race as finetuning_race


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
    assert (results["items"], results["steps_of_a_pass"]) == (20, 1)
    assert 3 <= results["mean_length"] <= results["longest"]
    arms = results["arms"]
    assert list(arms) == ["ours", "transformers"]
    for arm in arms.values():
        assert len(arm["seconds_of_passes"]) == 2
        rates = [4 / seconds for seconds in arm["seconds_of_passes"]]
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
    arms = [finetuning_race.Arm("a", lambda: made.append("a")), finetuning_race.Arm("b", None)]
    for _ in finetuning_race.time_pass(arms, 12, finetuning_race.torch.device("cpu")):
        made.append("b")
    assert made.count("a") == made.count("b") == 12
    # Turns of five steps; who begins changes.
    assert made[:10] == ["b"] * 5 + ["a"] * 5 and made[10:20] == ["a"] * 5 + ["b"] * 5


def test_a_pass_is_a_stretch_of_batches_that_the_trainer_sorts():
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = finetuning.np.random.default_rng(0).integers(5, 90, 700).tolist()
    steps = finetuning_race.stretch(700, 32)
    order = get_length_grouped_indices(lengths, 32)
    sorted_again = [
        index
        for index in range(1, 700)
        if lengths[order[index]] > lengths[order[index - 1]] and index % (steps * 32)
    ]
    assert all(index <= 1 for index in sorted_again)  # the longest of all comes first
    assert finetuning_race.stretch(10, 32) == 1 and finetuning.stretch(10**6, 32) == 50


def test_the_last_step_of_an_epoch_has_what_is_left():
    # 10 items in steps of 4: 4, 4, 2, 4, 4, 2, …; five steps of warming up come first.
    assert finetuning_race.items_of_pass(0, 3, 10, 4) == 2 + 4 + 4
    assert finetuning_race.items_of_pass(1, 4, 10, 4) == 4 + 4 + 2 + 4

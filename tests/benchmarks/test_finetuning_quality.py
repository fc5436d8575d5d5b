import json
import sys

import pytest
from small_tasks import WRITERS, write_data, write_encoder

from benchmarks import finetuning_quality as quality
from bert_core.errors import UserError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the benchmark with so many seeds; returns its results."""
    path = tmp_path / "results.json"
    places = ["--json", path, "--work", tmp_path / "work"]
    encoder = write_encoder(tmp_path / "encoder")

    def make(task, *words):
        data = tmp_path / task
        if not data.exists():
            write_data(task, data)
        given = [
            "--task",
            task,
            "--data",
            data,
            "--model",
            encoder,
            "--batch",
            "8",
            "--epochs",
            "2",
        ]
        monkeypatch.setattr(sys, "argv", list(map(str, ["benchmark", *given, *places, *words])))
        quality.main()
        return json.loads(path.read_text())

    return make


@pytest.mark.some(1)
@pytest.mark.parametrize("task", list(WRITERS))
def test_both_arms_train_with_each_seed_and_are_compared(run, task):
    results = run(task, "--seeds", 0, 1, "--peak_learning_rate", 1e-3)
    arms = [(training["arm"], training["seed"]) for training in results["trainings"]]
    assert arms == [("ours", 0), ("transformers", 0), ("ours", 1), ("transformers", 1)]
    criterion = results["criterion"]
    assert all(len(training["epochs"]) == 2 for training in results["trainings"])
    last = [training["epochs"][-1][criterion] for training in results["trainings"]]
    found = results["summary"][criterion]
    assert found["ours"] == pytest.approx((last[0] + last[2]) / 2)
    assert found["transformers"] == pytest.approx((last[1] + last[3]) / 2)
    difference = found["difference"]
    assert difference["value"] == pytest.approx(found["ours"] - found["transformers"])
    assert difference["low"] <= difference["value"] <= difference["high"]
    for seed, (ours, theirs) in enumerate((last[:2], last[2:])):
        assert results["compared"][str(seed)][criterion]["value"] == pytest.approx(ours - theirs)


def test_it_goes_on_where_it_was_stopped(run, tmp_path, capsys):
    first = run("mrpc", "--seeds", 0)
    stopped = dict(first, trainings=first["trainings"][:1], compared={})
    (tmp_path / "results.json").write_text(json.dumps(stopped))
    capsys.readouterr()
    results = run("mrpc", "--seeds", 0)
    assert results["trainings"][0] == first["trainings"][0]
    assert results["trainings"][1]["epochs"] == first["trainings"][1]["epochs"]
    assert results["compared"] == first["compared"]
    said = capsys.readouterr().out
    assert "transformers seed 0 epoch 2" in said and "ours seed 0" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("task", "step"), [("squad", 2), ("mrpc", 4), ("squad", 5)])
def test_a_training_goes_on_from_its_last_checkpoint(run, tmp_path, monkeypatch, task, step):
    """Both arms are stopped behind a step, within an epoch and at its end, and come to the same."""
    whole = run(task, "--seeds", 0, "--checkpoint_every", 2)
    (tmp_path / "results.json").unlink()
    reach = quality.Progress.reach
    stopped, seen = set(), []

    def stop_once(progress, number):
        seen.append((progress._name, number))
        reach(progress, number)
        if number == step and progress._name not in stopped:
            stopped.add(progress._name)
            raise KeyboardInterrupt

    monkeypatch.setattr(quality.Progress, "reach", stop_once)
    for _ in quality.ARMS:
        with pytest.raises(KeyboardInterrupt):
            run(task, "--seeds", 0, "--checkpoint_every", 2)
    results = run(task, "--seeds", 0, "--checkpoint_every", 2)
    assert results["trainings"] == whole["trainings"]
    assert results["compared"] == whole["compared"]
    for name in stopped:
        assert seen.count((name, 1)) == (2 if step == 2 else 1), "it began anew"
    assert not list((tmp_path / "work").glob("*/epochs.json"))


def test_a_file_of_other_settings_is_left_alone(run, tmp_path):
    run("mrpc", "--seeds", 0)
    before = (tmp_path / "results.json").read_text()
    with pytest.raises(UserError, match="results of other settings"):
        run("mrpc", "--seeds", 0, "--peak_learning_rate", 1e-4)
    assert (tmp_path / "results.json").read_text() == before


def test_progress_says_how_long_it_takes(monkeypatch, capsys):
    now = iter([0.0, 10.0, 100.0, 200.0])
    monkeypatch.setattr(quality.time, "monotonic", lambda: next(now))
    progress = quality.Progress("ours seed 0", 20)
    progress.reach(11)
    assert not capsys.readouterr().out
    progress.reach(12)
    assert capsys.readouterr().out == "ours seed 0: step 12 of 20, 7 min left\n"

"""A sweep and its trials in this process; `test_tune.py` trains them through Ray."""

import json
import operator
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import yaml
from pretraining_runs import Channel, StoppingWorker
from sweep_runs import sweep_arguments, sweep_settings, train_here, write_inputs

from bert_core.errors import UserError
from workflows.finetune import opened_job, parse
from workflows.messages import RunProgress, Speed
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.sweeps.findings import headline
from workflows.sweeps.folds import out_of_fold
from workflows.sweeps.outcome import TrialOutcome
from workflows.sweeps.planned import TrialStatus
from workflows.sweeps.report import write_sweep_report
from workflows.sweeps.run import (
    Driver,
    conclude,
    export_winner,
    total_speed,
    write_folds,
    write_report,
)
from workflows.sweeps.sweep import keep_points, opened_sweep
from workflows.tune import parse as tune_parse


@pytest.fixture
def storage(tmp_path):
    return write_inputs(tmp_path)


def opened(storage, *axes, **changed):
    return opened_sweep(sweep_settings(storage, *axes, **changed), open_storage(str(storage)))


def write_result(trial, score):
    """Makes a trial a finished one with this score, with weights."""
    TrialOutcome(trial.name, trial.point, trial.seed, score=score).write(
        trial.job.folder.path / "trial.json"
    )
    trial.job.folder.checkpoints.mkdir(exist_ok=True)
    (trial.job.folder.checkpoints / "weights").touch()


def have_weights(trials):
    return [(trial.job.folder.checkpoints / "weights").exists() for trial in trials]


def test_a_grid_has_every_point_with_every_seed(storage):
    with opened(storage, seeds=2, seed=5) as sweep:
        assert len(sweep.trials) == 8 and len({trial.name for trial in sweep.trials}) == 8
        assert {trial.seed for trial in sweep.trials} == {5, 6}
        for trial in sweep.trials:
            settings = trial.job.settings
            assert settings.batch_size == trial.point["batch_size"]
            rate = trial.point["optimizer.peak_learning_rate"]
            assert (settings.optimizer.peak_learning_rate, settings.seed) == (rate, trial.seed)
        assert len(sweep.held) == 1  # read once for all
    with opened(storage, "options.max_length=8,32") as sweep:  # an axis that changes the data
        short, long = (trial.job.data for trial in sweep.trials)
        assert short.sha256 != long.sha256 and len(sweep.held) == 2
        assert short.train.rows.lengths.max() <= 8 < long.train.rows.lengths.max()


def test_options_that_leave_the_rows_as_they_are_are_each_trials_own(storage):
    with opened(storage, "options.max_length=31,32", "options.overflow=right,window") as sweep:
        shared = [trial.to_train().shared["task_data"] for trial in sweep.trials]
        assert len({name for name, _ in shared}) == 1 and len(sweep.held) == 1
        for trial in sweep.trials:
            told = trial.to_train()
            assert told.shared["task_data"][1].train.rows is sweep.trials[0].job.data.train.rows
            for task in (told.own["task"], trial.job.data.task):
                assert task.max_length == trial.point["options.max_length"]
                assert task.overflow == trial.point["options.overflow"]
            parts = trial.job.worker_job().open_parts(
                StoppingWorker(0, 1, torch.device("cpu"), Channel()),
                trial.job.folder.path,
                task_data=sweep.trials[0].job.data,
                **told.own,
            )
            (task,) = parts.compute_loss.args
            assert task.max_length == trial.point["options.max_length"]


def test_a_trial_that_another_sweep_ended_early_is_trained_to_its_end(storage):
    axes = ("batch_size=8,16",)
    with opened(storage, *axes, stop_early=True) as sweep:
        for trial in sweep.trials:
            write_result(trial, 0.5)
        behind = replace(sweep.trials[0].outcome, stopped_early=True)
        behind.write(sweep.trials[0].job.folder.path / "trial.json")
        name = behind.name
    with opened(storage, *axes, stop_early=True) as sweep:
        assert sweep.left() == []
    with opened(storage, *axes) as sweep:
        assert [trial.name for trial in sweep.left()] == [name]


def test_a_failed_trial_ends_a_sweep_that_trains_its_winner_again(storage):
    with opened(storage, "batch_size=8,16") as sweep:
        failed, winner = sweep.trials
        driver = Driver(sweep, SimpleNamespace(end=lambda *_: None), None, 1)
        failed.status = TrialStatus("failed", "no luck")
        write_result(winner, 0.5)
        assert driver._end_unfinished(sweep.trials) and failed.failure == "no luck"
        failed.status = TrialStatus()  # a second round has a new board
        assert driver._end_unfinished(sweep.trials)
        winner.forget()
        assert not driver._end_unfinished(sweep.trials) and sweep.left() == [failed, winner]


def test_a_trial_is_the_run_that_finetune_makes_of_its_settings(storage):
    with opened(storage) as sweep:
        name = sweep.trials[-1].name
    given = sweep_arguments(storage, batch_size=16, optimizer__peak_learning_rate=1e-3)
    given = given[: given.index("--axis")]
    with opened_job(parse(given), open_storage(str(storage))) as job:
        assert job.folder.name == name


def test_a_run_of_another_sweep_has_the_point_of_this_one(storage):
    with opened(storage, "batch_size=8", name="first") as first:
        train_here(first.trials[0])
        first.trials[0].finish()
    with opened(storage, "batch_size=8,16", "epochs=2,3", name="second") as second:
        trained = [trial for trial in second.trials if trial.is_finished]
        assert [trial.name for trial in trained] == [first.trials[0].name]
        outcome = second.outcome(at_once=1)
    (found,) = (trial for trial in outcome.trials if trial.score is not None)
    assert found.point == {"batch_size": 8, "epochs": first.settings.epochs}
    write_sweep_report(outcome, storage / "report")


def test_the_same_sweep_resumes_and_other_settings_are_another(storage):
    with opened(storage) as sweep:
        name = sweep.folder.name
        train_here(sweep.trials[2])
        trained = sweep.trials[2].name
        with pytest.raises(UserError, match="another process"), opened(storage):
            pass
    with opened(storage, seeds=2, at_once=1, cluster__max_failures=0) as sweep:
        assert sweep.folder.name == name
        # A trained run counts, although its outcome was not written.
        assert [trial.name for trial in sweep.trials if trial.is_finished] == [trained]
        assert len(sweep.left()) == 7
    for axes, changed in ((["batch_size=8"], {}), ([], {"epochs": 3})):
        with opened(storage, *axes, **changed) as sweep:
            assert sweep.folder.name != name


def test_fresh_sets_the_sweep_and_its_trials_aside(storage):
    with opened(storage, "epochs=1,2") as sweep:
        write_result(sweep.trials[0], 0.5)
    with opened(storage, "epochs=1,2", fresh=True) as sweep:
        assert len(sweep.left()) == 2
    assert len(list((storage / "sweeps").glob("*.before-*"))) == 1


def test_only_trials_that_can_be_the_best_keep_their_weights(storage):
    with opened(storage, "epochs=1,2,3", seeds=2) as sweep:
        assert sweep.best() is None
        for trial, score in zip(sweep.trials, [0.9, 0.1, 0.7, 0.6, 0.2, 0.3], strict=True):
            write_result(trial, score)
            sweep.drop_losers()
        assert sweep.best() is sweep.trials[2], "the best trial of the point with the best mean"
        assert have_weights(sweep.trials) == [False, False, True] + [False] * 3
    with opened(storage, "epochs=4,5", seeds=2) as sweep:
        for trial, score in zip(sweep.trials, [0.5, 0.6, 0.1], strict=False):
            write_result(trial, score)
        sweep.drop_losers()
        # The other seed of the third may be better than any.
        assert have_weights(sweep.trials) == [False, True, True, False]


def test_the_outcome_has_all_trials(storage):
    with opened(storage, "epochs=1,2", name="mine") as sweep:
        write_result(sweep.trials[0], 0.5)
        sweep.trials[1].failure = "no luck"
        sweep.add_seconds(2.5)
        sweep.add_seconds(1.0)
        outcome = sweep.outcome(at_once=2)
    assert (outcome.name, outcome.task, outcome.criterion) == ("mine", "classification", "accuracy")
    assert (outcome.model, outcome.data) == ("encoder", "data")
    assert (outcome.num_train, outcome.num_dev, outcome.axes) == (90, 40, ("epochs",))
    scores = [(trial.score, trial.failure) for trial in outcome.trials]
    assert scores == [(0.5, None), (None, "no luck")]
    assert outcome.wall_seconds == 3.5 and outcome.at_once == 2
    assert str(storage) not in json.dumps(outcome.settings)
    assert "axis" not in outcome.settings and outcome.settings["batch_size"] == 32


def test_proposed_points_are_read_again(storage):
    with opened(storage, "epochs=1..4", search="optuna", points=3) as sweep:
        assert sweep.trials == []
        sweep.plan({"epochs": 2})
        sweep.plan({"epochs": 4})
        keep_points(sweep)
    with opened(storage, "epochs=1..4", search="optuna", points=9) as sweep:
        assert [trial.point for trial in sweep.trials] == [{"epochs": 2}, {"epochs": 4}]


@pytest.mark.parametrize(
    ("axes", "changed", "message"),
    [
        (("epoch=2,3",), {}, "no setting, did you mean epochs"),
        (("epochs=2", "epochs=3"), {}, "given twice"),
        (("seed=1,2",), {}, "no axis of a sweep"),
        (("axis=1,2",), {}, "no axis of a sweep"),
        (("decisions.temperature=true,false",), {}, "no axis of a sweep"),
        (("cluster.use_gpu=true",), {}, "no axis of a sweep"),
        (("epochs=2..4",), {}, "grid of a range"),
        (("epochs=2,3",), {"stop_early": True}, "epochs is an axis"),
        (
            ("batch_size=8,16",),
            {"stop_early": True, "evaluation.metric": "loss"},
            "another selects",
        ),
        (("epochs=2,3",), {"points": 2}, "a grid has all its points"),
        (("epochs=2..9",), {"search": "random"}, "how many points"),
        (("epochs=2..9",), {"search": "optuna", "points": 2, "seeds": 2}, "single trials"),
        (("batch_size=0,8",), {}, "greater than or equal to 1"),
        (("dropout.hidden_dropout_prob=0.1,1.5",), {}, "less than 1"),
        (("reinit_layers=0,20",), {}, "20 layers of"),
        (("keep_layers=1,2",), {"freeze_layers": 2}, "2 layers of 1"),
        (
            ("freeze_layers=0,1",),
            {"reinit_layers": 1},
            "1 layers to freeze and 1 to draw anew, of 1",
        ),
        (("max_tokens=1024,2048",), {}, "no axis of a sweep"),
        (("options.text_column=text,Text",), {}, "column"),
    ],
)
def test_contradictory_settings_are_refused(storage, axes, changed, message):
    with pytest.raises(UserError, match=message) as error, opened(storage, *axes, **changed):
        pass
    assert "\n" not in str(error.value)
    assert not list(storage.glob("sweeps/*/"))


@pytest.fixture
def sweep(storage):
    with opened(storage, "epochs=1,3", batch_size=8) as sweep:
        yield sweep


def test_the_outcome_of_a_trial(sweep):
    short, trial = sweep.trials
    assert trial.cost == 3 * short.cost > 0 and sweep.left() == [trial, short]
    assert not trial.is_finished and trial.outcome == TrialOutcome(trial.name, {"epochs": 3}, 0)
    train_here(trial)
    trial.finish()
    outcome = trial.outcome
    assert trial.is_finished and outcome.failure is None and not outcome.stopped_early
    assert (outcome.point, outcome.seed, outcome.name) == ({"epochs": 3}, 0, trial.name)
    assert [epoch.epoch for epoch in outcome.curve] == [1, 2, 3]
    assert outcome.score == outcome.figures["dev/accuracy"]
    assert outcome.score == max(epoch.score for epoch in outcome.curve)
    assert outcome.score == outcome.curve[outcome.best_epoch - 1].score
    assert outcome.num_tokens == trial.cost
    assert outcome.seconds > 0 and outcome.device_hours == pytest.approx(outcome.seconds / 3600)
    # The training loss of an epoch is the mean of its steps.
    records = list(read_records(trial.job.folder.path / "journal.jsonl"))
    losses = [record.metrics["train/loss"] for record in records if "train/loss" in record.metrics]
    per_epoch = len(losses) // 3
    second = losses[per_epoch : 2 * per_epoch]
    assert outcome.curve[1].train_loss == pytest.approx(statistics.fmean(second))
    # Without its weights the trial is still finished.
    assert trial.job.folder.is_trained()
    trial.drop_weights()
    assert not list(trial.job.folder.path.rglob("*.safetensors"))
    assert trial.is_finished and trial.outcome == outcome


def test_a_trial_that_was_stopped_early_has_its_best_score(sweep):
    trial = sweep.trials[1]
    steps = -(-trial.job.data.train.rows.num_items // 8)
    train_here(trial, stop_after=2 * steps)
    trial.status = TrialStatus("behind", progress=RunProgress(used_seconds=7.5))
    trial.finish(stopped_early=True)
    outcome = trial.outcome
    assert (outcome.seconds, outcome.device_hours) == (7.5, 7.5 / 3600)
    assert outcome.stopped_early and len(outcome.curve) == 2
    assert outcome.score == max(epoch.score for epoch in outcome.curve)
    assert outcome.num_tokens == trial.cost * 2 // 3


def test_the_speed_is_the_sum_over_running_trials():
    def trial(state, speed):
        progress = RunProgress(speed=Speed(speed, 0.0, 0.5, 1 << 30, 60.0))
        return SimpleNamespace(status=TrialStatus(state, progress=progress))

    trials = [trial("running", 100.0), trial("trained", 50.0), trial("running", 20.0)]
    assert total_speed(trials) == {"tokens_per_second": 120.0}
    assert total_speed([SimpleNamespace(status=TrialStatus("running"))]) == {}


def test_the_time_of_every_start_counts(sweep):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), sweep.counted_time():
            raise KeyboardInterrupt
    assert 0 < sweep.seconds() < 1


def test_a_sweep_keeps_its_run_at_mlflow(sweep, storage):
    first = sweep.tracked_run()
    assert first == sweep.tracked_run() and first.experiment == "sweeps"
    assert first.run_name == sweep.folder.name and first.params["seeds"] == "1"
    assert first.tags["data.sha256"] == sweep.data.sha256
    assert str(storage) not in "".join(first.params.values())


def test_where_all_trials_failed_report_and_error_say_why(sweep):
    for trial in sweep.trials:
        trial.failure = "the disk is full"
    driver = SimpleNamespace(tracking=None)
    assert export_winner(sweep, driver) is None
    lines = write_report(sweep, at_once=2)
    assert "2 failed" in lines[0]
    assert "the disk is full" in (sweep.folder.path / "artifacts" / "report.md").read_text()
    with pytest.raises(UserError, match="no trial has finished: the disk is full"):
        conclude(sweep, driver, None, lines)
    assert not sweep.folder.summary.exists()


@pytest.mark.slow
def test_every_fold_is_dev_once_and_every_example_is_predicted_out_of_its_fold(storage):
    given = sweep_arguments(storage, folds=3, epochs=1)
    given = given[: given.index("--axis")]
    with opened_sweep(tune_parse(given), open_storage(str(storage))) as sweep:
        assert [(trial.point, trial.fold) for trial in sweep.trials] == [({}, n) for n in range(3)]
        assert len({trial.name for trial in sweep.trials}) == 3 and len(sweep.held) == 3
        assert sweep.folds_of_the_best() == []
        for trial in sweep.trials:
            train_here(trial)
            trial.finish()
            sweep.drop_losers()
        left = [path.name for path in storage.glob("runs/*/**/*.safetensors")]
        assert left == ["out_of_fold.safetensors"] * 3, "what was said of the folds, no weights"
        found = out_of_fold(sweep.folds_of_the_best())
        assert len({each.where for each in found.examples}) == len(found.examples) == 90
        scores = [trial.outcome.score for trial in sweep.trials]
        sizes = [len(trial.job.data.dev.examples) for trial in sweep.trials]
        pooled = sum(map(operator.mul, scores, sizes)) / 90
        assert found.metrics["accuracy"] == pytest.approx(pooled)
        first, _ = write_folds(sweep)
        path = sweep.folder.path / "artifacts" / "out_of_fold.jsonl"
        assert "90 examples" in first
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [each["fold"] for each in records] == list(found.fold)
        assert all(set(each["prediction"]["scores"]) == {"down", "up"} for each in records)
        outcome = sweep.outcome(at_once=1)
        findings = write_sweep_report(outcome, storage / "report")
        assert findings.repeats == [0, 1, 2] and "3 folds, 95 % interval" in headline(findings)
        best = yaml.safe_load((storage / "report" / "best.yaml").read_text())
        assert not {"folds", "fold", "split"} & best.keys() and "--split 0.1" in findings.command
    with opened_sweep(tune_parse(given), open_storage(str(storage))) as sweep:
        assert sweep.left() == []
        again = out_of_fold(sweep.folds_of_the_best())
        assert again.predictions == found.predictions


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"folds": 3, "fold": 1}, "--fold "),
        ({"folds": 3, "seeds": 2}, "--seeds"),
        ({"folds": 3, "tracking.register_as": "m"}, "--tracking.register_as"),
        ({"folds": 3, "stop_early": True}, "--stop_early"),
        ({"folds": 3, "decisions.temperature": True}, "--decisions.temperature"),
        ({"folds": 3, "search": "optuna", "points": 2}, "single trials"),
    ],
)
def test_what_says_nothing_of_folds_is_refused(storage, changed, message):
    with pytest.raises(UserError, match=message), opened(storage, "batch_size=8,16", **changed):
        pass


def test_the_settings_as_they_are_may_have_several_seeds(storage):
    with opened(storage, "none", seeds=2) as sweep:
        assert [(trial.point, trial.seed) for trial in sweep.trials] == [({}, 0), ({}, 1)]
        for trial in sweep.trials:
            write_result(trial, 0.5)
        assert write_folds(sweep) == [], "no fold is dev"

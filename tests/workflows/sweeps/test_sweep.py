import json
import statistics

import pytest
from finetuning_runs import write_encoder, write_task
from sweep_runs import sweep_arguments, sweep_settings, train_here

from bert_core.errors import UserError
from workflows.finetune import opened_job, parse
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.sweeps.outcome import TrialOutcome
from workflows.sweeps.sweep import keep_points, opened_sweep


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return tmp_path


def opened(storage, *axes, **changed):
    return opened_sweep(sweep_settings(storage, *axes, **changed), open_storage(str(storage)))


def pretend(trial, score):
    """As if the trial had finished with this score, with weights."""
    TrialOutcome(trial.name, trial.point, trial.seed, score=score).write(
        trial.job.folder.path / "trial.json"
    )
    trial.job.folder.checkpoints.mkdir(exist_ok=True)
    (trial.job.folder.checkpoints / "weights").touch()


def has_weights(trial):
    return (trial.job.folder.checkpoints / "weights").exists()


def test_a_grid_has_every_point_with_every_seed(storage):
    with opened(storage, seeds=2, seed=5) as sweep:
        assert len(sweep.trials) == 8 and len({each.name for each in sweep.trials}) == 8
        assert {each.seed for each in sweep.trials} == {5, 6}
        for trial in sweep.trials:
            settings = trial.job.settings
            assert settings.batch_size == trial.point["batch_size"]
            rate = trial.point["optimizer.peak_learning_rate"]
            assert (settings.optimizer.peak_learning_rate, settings.seed) == (rate, trial.seed)
        assert len(sweep.shared) == 1  # read once for all


def test_data_are_read_again_where_an_axis_changes_them(storage):
    with opened(storage, "options.max_length=8,32") as sweep:
        short, long = (each.job.data for each in sweep.trials)
        assert short.sha256 != long.sha256 and len(sweep.shared) == 2
        assert short.train.rows.lengths.max() <= 8 < long.train.rows.lengths.max()


def test_a_trial_is_the_run_that_finetune_makes_of_its_settings(storage):
    with opened(storage) as sweep:
        name = sweep.trials[-1].name
    given = sweep_arguments(storage, batch_size=16, optimizer__peak_learning_rate=1e-3)
    given = given[: given.index("--axis")]
    with opened_job(parse(given), open_storage(str(storage))) as job:
        assert job.folder.name == name


def test_the_same_sweep_goes_on_and_another_is_another(storage):
    with opened(storage) as sweep:
        name = sweep.folder.name
        train_here(sweep.trials[2])
        trained = sweep.trials[2].name
    with opened(storage, seeds=2, at_once=1, cluster__max_failures=0) as sweep:
        assert sweep.folder.name == name
        finished = [each.name for each in sweep.trials if each.is_finished]
        assert finished == [trained]  # although nobody wrote it down
        assert len(sweep.left()) == 7
    with opened(storage, "batch_size=8") as sweep:
        assert sweep.folder.name != name
    with opened(storage, epochs=3) as sweep:
        assert sweep.folder.name != name


def test_one_process_has_a_sweep(storage):
    with opened(storage), pytest.raises(UserError, match="another process"), opened(storage):
        pass


def test_fresh_sets_the_sweep_and_its_trials_aside(storage):
    with opened(storage, "epochs=1,2") as sweep:
        pretend(sweep.trials[0], 0.5)
    with opened(storage, "epochs=1,2", fresh=True) as sweep:
        assert len(sweep.left()) == 2
    assert len(list((storage / "sweeps").glob("*.before-*"))) == 1


def test_the_best_point_has_the_best_mean_and_of_it_the_best_trial_is_kept(storage):
    with opened(storage, "epochs=1,2,3", seeds=2) as sweep:
        assert sweep.best() is None
        for trial, score in zip(sweep.trials, [0.9, 0.1, 0.7, 0.6, 0.2, 0.3], strict=True):
            pretend(trial, score)
            sweep.drop_losers()
        assert sweep.best() is sweep.trials[2]
        assert [has_weights(each) for each in sweep.trials] == [False, False, True] + [False] * 3


def test_what_may_still_win_keeps_its_weights(storage):
    with opened(storage, "epochs=1,2", seeds=2) as sweep:
        first, second, third, _ = sweep.trials
        pretend(first, 0.5)
        pretend(second, 0.6)
        pretend(third, 0.1)  # its other seed may be better than any
        sweep.drop_losers()
        assert [has_weights(each) for each in (first, second, third)] == [False, True, True]


def test_the_outcome_holds_all_trials(storage):
    with opened(storage, "epochs=1,2", name="mine") as sweep:
        pretend(sweep.trials[0], 0.5)
        sweep.trials[1].failure = "no luck"
        sweep.add_seconds(2.5)
        sweep.add_seconds(1.0)
        outcome = sweep.outcome(at_once=2)
    assert (outcome.name, outcome.task, outcome.criterion) == ("mine", "classification", "accuracy")
    assert (outcome.model, outcome.data) == ("encoder", "data")
    assert (outcome.num_train, outcome.num_dev, outcome.axes) == (90, 40, ("epochs",))
    found = [(each.score, each.failure) for each in outcome.trials]
    assert found == [(0.5, None), (None, "no luck")]
    assert outcome.wall_seconds == 3.5 and outcome.at_once == 2
    assert str(storage) not in json.dumps(outcome.settings)
    assert "axis" not in outcome.settings and outcome.settings["batch_size"] == 32


def test_points_that_were_proposed_are_known_again(storage):
    search = {"search": "optuna", "points": 3}
    with opened(storage, "epochs=1..4", **search) as sweep:
        assert sweep.trials == []
        sweep.plan({"epochs": 2})
        sweep.plan({"epochs": 4})
        keep_points(sweep)
    with opened(storage, "epochs=1..4", search="optuna", points=9) as sweep:
        assert [each.point for each in sweep.trials] == [{"epochs": 2}, {"epochs": 4}]


@pytest.mark.parametrize(
    ("axes", "changed", "message"),
    [
        (("epoch=2,3",), {}, "no setting, did you mean epochs"),
        (("epochs=2", "epochs=3"), {}, "given twice"),
        (("seed=1,2",), {}, "no axis of a sweep"),
        (("axis=1,2",), {}, "no axis of a sweep"),
        (("cluster.use_gpu=true",), {}, "no axis of a sweep"),
        (("epochs=2..4",), {}, "grid of a range"),
        (("epochs=2,3",), {"stop_early": True}, "epochs is an axis"),
        (("epochs=2,3",), {"points": 2}, "a grid has all its points"),
        (("epochs=2..9",), {"search": "random"}, "how many points"),
        (("epochs=2..9",), {"search": "optuna", "points": 2, "seeds": 2}, "single trials"),
        (("batch_size=0,8",), {}, "greater than or equal to 1"),
        (("dropout.hidden_dropout_prob=0.1,1.5",), {}, "less than 1"),
    ],
)
def test_what_a_sweep_may_not_be(storage, axes, changed, message):
    with pytest.raises(UserError, match=message) as error, opened(storage, *axes, **changed):
        pass
    assert "\n" not in str(error.value)
    assert not list((storage / "sweeps").glob("*/")) if (storage / "sweeps").exists() else True


@pytest.fixture
def sweep(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    settings = sweep_settings(tmp_path, "epochs=1,3", batch_size=8)
    with opened_sweep(settings, open_storage(str(tmp_path))) as sweep:
        yield sweep


def test_what_a_trial_comes_to(sweep):
    trial = sweep.trials[1]
    assert not trial.is_finished and trial.outcome == TrialOutcome(trial.name, {"epochs": 3}, 0)
    train_here(trial)
    trial.finish()
    outcome = trial.outcome
    assert trial.is_finished and outcome.failure is None and not outcome.stopped_early
    assert (outcome.point, outcome.seed, outcome.name) == ({"epochs": 3}, 0, trial.name)
    assert [each.epoch for each in outcome.curve] == [1, 2, 3]
    assert outcome.score == outcome.figures["dev/accuracy"]
    assert outcome.score == max(each.score for each in outcome.curve)
    assert outcome.score == outcome.curve[outcome.best_epoch - 1].score
    assert outcome.num_tokens == trial.cost
    assert outcome.seconds > 0 and outcome.device_hours == pytest.approx(outcome.seconds / 3600)


def test_an_epochs_loss_is_the_mean_of_its_steps(sweep):
    trial = sweep.trials[1]
    train_here(trial)
    records = list(read_records(trial.job.folder.path / "journal.jsonl"))
    losses = [each.metrics["train/loss"] for each in records if "train/loss" in each.metrics]
    per_epoch = len(losses) // 3
    second = losses[per_epoch : 2 * per_epoch]
    assert trial.curve()[1].train_loss == pytest.approx(statistics.fmean(second))


def test_a_trial_that_was_ended_early_counts_what_it_had(sweep):
    trial = sweep.trials[1]
    steps = -(-trial.job.data.train.rows.num_items // 8)
    train_here(trial, stop_after=2 * steps)
    trial.finish(stopped_early=True)
    outcome = trial.outcome
    assert outcome.stopped_early and len(outcome.curve) == 2
    assert outcome.score == max(each.score for each in outcome.curve)
    assert outcome.num_tokens == trial.cost * 2 // 3


def test_weights_go_and_the_outcome_stays(sweep):
    trial = sweep.trials[0]
    train_here(trial)
    trial.finish()
    before = trial.outcome
    assert trial.job.folder.is_trained()
    trial.drop_weights()
    assert not list(trial.job.folder.path.rglob("*.safetensors"))
    assert trial.is_finished and trial.outcome == before


def test_longer_trials_cost_more(sweep):
    short, long = sweep.trials
    assert long.cost == 3 * short.cost > 0
    assert sweep.left() == [long, short]

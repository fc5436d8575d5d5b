import statistics

import pytest
from finetuning_runs import write_encoder, write_task
from sweep_runs import sweep_settings, train_here

from workflows.storage import open_storage
from workflows.sweeps.outcome import TrialOutcome
from workflows.sweeps.sweep import opened_sweep
from workflows.tracking.journal import read_records


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

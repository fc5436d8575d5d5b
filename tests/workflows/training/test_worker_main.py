"""Jobs that one worker goes through: each as if alone, stopped anywhere, passed over."""

import pytest
import torch
from finetuning_runs import arguments, finetune_here, write_encoder, write_task
from pretraining_runs import Channel
from storage_addresses import folder_address

from bert_core.training.checkpoint import newest_checkpoint
from workflows.clusters.workers import Worker
from workflows.finetune import opened_job, parse
from workflows.messages import Outcome, RunProgress
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.training.run import run_location, train_jobs


def test_a_worker_works_in_the_run_folder_or_in_a_copy_of_the_address(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    there = tmp_path / "runs" / "run"
    assert run_location(str(tmp_path), there) == (there, None)
    folder, remote = run_location(folder_address(tmp_path / "address"), there)
    assert folder.name == "run" and (tmp_path / "home") in folder.parents
    assert remote is not None


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_task(storage / "data")
    write_task(storage / "other", train=50, inverted=True)
    write_encoder(storage / "encoder")
    return storage


DIFFERENT = {
    "first": {"epochs": 2},
    "second": {"data": "other", "seed": 7, "optimizer.name": "lamb", "batch_size": 5, "epochs": 1},
}
"""Jobs that have little in common: of 24 steps and of 10."""


def settings_of(storage, name, prefix):
    changed = {"name": f"{prefix}-{name}", "checkpoint.every_steps": 9} | DIFFERENT[name]
    if "data" in changed:
        changed["data"] = storage / changed["data"]
    return changed


@pytest.fixture(scope="module")
def alone(storage):
    """What each job leaves that is trained by itself."""
    return {
        name: left(finetune_here(storage, **settings_of(storage, name, "alone"))[0].folder.path)
        for name in DIFFERENT
    }


def left(folder):
    """Whatever a run leaves that its steps decide."""
    path, _ = newest_checkpoint(folder / "checkpoints")
    names = ["model.safetensors", "optimizer.safetensors"]
    names += [f"files/best{rest}" for rest in (".safetensors", "_predictions.jsonl")]
    records = [(record.step, record.metrics) for record in read_records(folder / "journal.jsonl")]
    return path.name, records, [(path / name).read_bytes() for name in names]


def job(storage, name, prefix):
    """Folder and job as a driver has them."""
    settings = parse(arguments(storage, **settings_of(storage, name, prefix)))
    with opened_job(settings, open_storage(str(storage))) as opened:
        return opened.folder.path, opened.worker_job()


class AskingWorker(Worker):
    """A worker that is told to stop after it has asked so often; never, where that is 0."""

    asked = 0
    told_after = 0

    def stop_requested(self):
        self.asked += 1
        return 0 < self.told_after <= self.asked


def in_turn(jobs, told_after=0):
    """One start of a worker: what became of the jobs, and its channel."""
    worker = AskingWorker(0, 1, torch.device("cpu"), Channel())
    worker.told_after = told_after
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train_jobs([each for _, each in jobs], worker), worker._channel
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.slow
def test_a_job_among_others_learns_the_same_bits_as_alone(storage, alone):
    order = ("second", "first")
    jobs = [job(storage, name, "together") for name in order]
    outcomes, channel = in_turn(jobs)
    assert all(not outcome.stopped for outcome in outcomes)
    assert channel.jobs == [each for pair in enumerate(outcomes) for each in pair]
    for name, (folder, _) in zip(order, jobs, strict=True):
        assert left(folder) == alone[name], name


@pytest.mark.slow
def test_stopped_within_jobs_or_between_they_go_on(storage, alone):
    """A worker asks before each job, and in each of its steps."""
    jobs = [job(storage, name, "stopped") for name in DIFFERENT]
    for told_after, steps in ((1, []), (9, [8]), (17, [24]), (6, [24, 4])):
        outcomes, channel = in_turn(jobs, told_after)
        assert [outcome.step for outcome in outcomes] == steps
        begun = [each for each in channel.jobs if isinstance(each, int)]
        assert begun == list(range(len(steps)))
    outcomes, _ = in_turn(jobs)
    assert outcomes == [Outcome(step, stopped=False) for step in (24, 10)]
    for name, (folder, _) in zip(DIFFERENT, jobs, strict=True):
        assert left(folder) == alone[name], name


@pytest.mark.slow
def test_trained_jobs_are_passed_over_without_a_look_at_their_data(storage, alone):
    jobs = [job(storage, name, "passed") for name in DIFFERENT]
    in_turn(jobs[:1])
    (storage / "data").rename(storage / "elsewhere")
    try:
        outcomes, channel = in_turn(jobs)
    finally:
        (storage / "elsewhere").rename(storage / "data")
    assert channel.jobs == [0, outcomes[0], 1, outcomes[1]]
    assert outcomes == [Outcome(step, stopped=False) for step in (24, 10)]
    assert channel.progress[0] == RunProgress(step=24, total_steps=24)
    assert {each.total_steps for each in channel.progress[1:]} == {10}
    assert [left(folder) for folder, _ in jobs] == list(alone.values())

"""A run at an address and its working copies, each "machine" a folder of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pretraining_runs import (
    Run,
    committed_checkpoints,
    train_here,
    training_workers,
    write_corpus,
)
from storage_addresses import CREDENTIALS, folder_address, s3_server

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from bert_core.training import checkpoint_folder
from bert_core.training.checkpoint_folder import NEEDED, checkpoint_name
from workflows.messages import Outcome
from workflows.runs.folder import RunFolder, open_run
from workflows.runs.journal import Journal, JournalReader
from workflows.runs.sender import verify_exactly_once
from workflows.runs.storage import RemoteFolder, RemoteRun
from workflows.settings import storage_folder

RECIPE = {"seed": 0}
JOURNAL = "journal.jsonl"


@pytest.fixture
def folder_uri(tmp_path):
    return folder_address(tmp_path / "there")


class Machine:
    """A machine's working copy of the run `run`, and what that does with the address."""

    def __init__(self, folder, uri):
        self.storage = folder
        self.folder = RunFolder(folder / "runs" / "run")
        self.remote = RemoteRun(uri, "run")

    def start(self, *, fresh=False, recipe=RECIPE, key="one"):
        """What the driver does before the workers begin."""
        with open_run(self.storage, "run", recipe, fresh=fresh, adopt=self.remote.adopt) as folder:
            if not folder.run_key.exists():
                write_atomically(folder.run_key, key)
            write_atomically(folder.settings, "seed: 0\n")
            if not fresh:
                self.remote.catch_up(folder)
            self.remote.begin(folder, fresh=fresh)

    def save(self, *steps, text=b"weights", keep=9):
        """Seals a checkpoint of each step here and uploads it."""
        for step in steps:
            self.remote.push_checkpoint(self.seal(step, text), keep)

    def seal(self, step, text=b"weights"):
        """A sealed checkpoint of a step, here alone."""
        final = self.folder.checkpoints / checkpoint_name(step)
        temporary = checkpoint_folder.temporary_folder(final)
        for name in NEEDED:
            (temporary / name).write_bytes(text * 1000)
        journal = Journal(temporary / "files" / JOURNAL)
        for number in range(1, step + 1):
            journal.append(number, {"train/loss": 1 / number})
        journal.close()
        checkpoint_folder.seal(temporary, final)
        return final

    @property
    def steps(self):
        """The steps of the checkpoints here."""
        names = (path.name for path in self.folder.checkpoints.glob("step-*"))
        return sorted(int(name.removeprefix("step-")) for name in names)


@pytest.fixture
def machine(tmp_path):
    """Makes machines by name; the same name is the same machine."""
    return lambda name, uri: Machine(tmp_path / name, uri)


def names_there(uri):
    return [name.removeprefix("runs/run/") for name in RemoteFolder(uri).names("runs")]


def test_what_one_machine_saved_another_goes_on_from(uri, machine):
    first, second = machine("first", uri), machine("second", uri)
    first.start()
    first.save(10, 20, 30, keep=2)
    files = sorted(["files/journal.jsonl", "manifest.json", *NEEDED])
    steps = [f"checkpoints/step-000000{step}/{file}" for step in (20, 30) for file in files]
    assert names_there(uri) == [*steps, "recipe.json", "run_key", "settings.yaml"]

    second.start()
    assert second.steps == [30]
    copied = second.folder.checkpoints / "step-00000030"
    assert checkpoint_folder.damage(copied) is None
    assert (second.folder.path / JOURNAL).read_bytes() == (copied / "files" / JOURNAL).read_bytes()
    assert second.folder.run_key.read_text() == "one"
    second.save(40, keep=2)
    first.start()
    assert first.steps == [30, 40]


def test_other_settings_are_refused_from_another_machine_and_fresh_sets_the_run_aside(uri, machine):
    first, second = machine("first", uri), machine("second", uri)
    first.start()
    first.save(10)
    with pytest.raises(UserError, match="seed: 0 -> 1"):
        second.start(recipe={"seed": 1})
    second.start(recipe={"seed": 1}, fresh=True, key="two")
    assert second.steps == []
    there = names_there(uri)
    assert [name for name in there if not name.startswith("runs/run.before-")] == [
        "recipe.json",
        "run_key",
        "settings.yaml",
    ]
    aside = {name.partition("/")[2].partition("/")[2] for name in there if "before" in name}
    assert {"recipe.json", "run_key", "checkpoints/step-00000010/manifest.json"} <= aside
    # The first machine's copy is of a run that is no more there.
    with pytest.raises(UserError, match="seed: 1 -> 0"):
        first.start()
    (kept,) = first.storage.glob("runs/run.before-*")
    assert (kept / "checkpoints" / "step-00000010" / "model.safetensors").exists()


def test_a_copy_without_a_run_at_the_address_is_set_aside(folder_uri, machine, tmp_path):
    first = machine("first", folder_uri)
    first.start()
    first.save(10)
    shutil.rmtree(tmp_path / "there" / "runs")
    first.start(key="two")
    assert first.steps == [] and first.folder.run_key.read_text() == "two"
    assert len(list(first.storage.glob("runs/run.before-*"))) == 1


def test_a_checkpoint_without_its_manifest_does_not_count(uri, machine):
    first, second = machine("first", uri), machine("second", uri)
    first.start()
    first.save(10, 20)
    RemoteFolder(uri).remove("runs/run/checkpoints/step-00000020/manifest.json")
    assert second.remote.pull(second.folder) == (10, [])
    # What a killed writer left is done again, or goes when it is old.
    second.save(30, keep=1)
    assert not [name for name in names_there(uri) if "step-00000020" in name]
    first.start()
    assert first.steps == [30]


def test_the_manifest_is_uploaded_last(folder_uri, machine, tmp_path):
    first = machine("first", folder_uri)
    first.start()
    path = first.seal(10)
    there = tmp_path / "there" / "runs" / "run" / "checkpoints" / path.name
    (there / "model.safetensors").mkdir(parents=True)  # it cannot be written
    with pytest.raises(UserError, match=r"cannot write.*model.safetensors"):
        first.remote.push_checkpoint(path, 3)
    assert not (there / "manifest.json").exists()
    (there / "model.safetensors").rmdir()
    first.remote.push_checkpoint(path, 3)
    assert checkpoint_folder.damage(there) is None
    before = (there / "manifest.json").stat().st_mtime_ns
    first.remote.push_checkpoint(path, 3)
    assert (there / "manifest.json").stat().st_mtime_ns == before, "it was there already"


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(uri, machine, tmp_path):
    first, second = machine("first", uri), machine("second", uri)
    first.start()
    first.save(10, 20)
    short = tmp_path / "short"
    short.write_bytes(b"damaged")
    RemoteFolder(uri).upload(short, "runs/run/checkpoints/step-00000020/model.safetensors")
    step, (message,) = second.remote.pull(second.folder)
    assert step == 10 and second.steps == [10]
    assert "step-00000020 is damaged and passed over: model.safetensors has 7 bytes" in message
    assert first.remote.pull(first.folder) == (20, []), "its own copy is whole"
    # It does not push what is whole out of those that are kept.
    second.save(15, keep=2)
    assert second.remote.pull(second.folder)[0] == 15 and second.steps == [10, 15]


def test_what_only_lies_here_is_not_gone_on_from(folder_uri, machine):
    first, second = machine("first", folder_uri), machine("second", folder_uri)
    first.start()
    first.save(10)
    first.seal(20)
    first.seal(30, b"other bits")
    second.start()
    second.save(30)
    assert first.remote.pull(first.folder) == (30, [])
    assert first.steps == [10, 30]
    assert (first.folder.checkpoints / "step-00000030" / "model.safetensors").read_bytes() == (
        second.folder.checkpoints / "step-00000030" / "model.safetensors"
    ).read_bytes()
    first.seal(40)
    assert first.remote.pull(first.folder, at_most=20) == (10, [])
    assert first.steps == [10]


def test_the_journal_follows_a_worker_on_another_machine_and_is_left_to_one_on_this(
    folder_uri, machine
):
    worker, driver = machine("worker", folder_uri), machine("driver", folder_uri)
    driver.start()
    worker.remote.adopt(worker.folder)
    reader = JournalReader(driver.folder.path / JOURNAL)
    worker.save(10)
    driver.remote.follow(driver.folder, None)
    driver.remote.follow(driver.folder, "step-00000010")
    assert [record.step for record in reader.peek(100)] == list(range(1, 11))
    reader.advance()
    driver.remote.follow(driver.folder, "step-00000020")  # its upload failed
    worker.save(30, keep=1)
    driver.remote.follow(driver.folder, "step-00000030")
    assert [record.step for record in reader.peek(100)] == list(range(1, 31))

    journal = Journal(driver.folder.path / JOURNAL)
    journal.append(31, {"train/loss": 0.5})
    before = (driver.folder.path / JOURNAL).stat()
    driver.remote.follow(driver.folder, "step-00000010")
    driver.remote.take_journal(driver.folder, 31)
    assert (driver.folder.path / JOURNAL).stat() == before


def test_in_the_end_both_have_the_last_checkpoint_or_it_is_said(folder_uri, machine):
    worker, driver = machine("worker", folder_uri), machine("driver", folder_uri)
    driver.start()
    worker.remote.adopt(worker.folder)
    worker.save(10)
    driver.remote.settle(driver.folder, 10, keep=3)
    assert driver.steps == [10]
    driver.seal(20)  # a worker here, whose upload failed
    driver.remote.settle(driver.folder, 20, keep=3)
    assert worker.remote.pull(worker.folder)[0] == 20
    with pytest.raises(UserError, match="the checkpoint of step 30 did not get to the storage"):
        driver.remote.settle(driver.folder, 30, keep=3)


def test_a_finished_run_is_finished_on_every_machine(uri, machine):
    first, second = machine("first", uri), machine("second", uri)
    first.start()
    for name in ("model/config.json", "artifacts/loss.png", JOURNAL, "summary.txt"):
        (first.folder.path / name).parent.mkdir(exist_ok=True)
        (first.folder.path / name).write_text(name)
    first.remote.push_results(first.folder)
    assert {"model/config.json", "artifacts/loss.png", JOURNAL} < set(names_there(uri))
    second.start()
    assert second.folder.summary.read_text() == "summary.txt"
    # One that did not get there has to be made again.
    RemoteFolder(uri).remove("runs/run/summary.txt")
    second.start()
    assert not second.folder.summary.exists()


AGREE = """
import sys
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from workflows.runs.storage import RemoteRun, agree_on_checkpoint
from workflows.runs.folder import RunFolder
rank, meeting, folder, uri = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group(
    "gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
step, messages = agree_on_checkpoint(
    RemoteRun(uri, "run"), RunFolder(Path(folder)), torch.device("cpu")
)
print(step, len(messages))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_all_workers_start_from_the_newest_checkpoint_that_each_has(
    folder_uri, machine, tmp_path, repository
):
    first, second = machine("first", folder_uri), machine("second", folder_uri)
    first.start()
    first.save(10, 20)
    damaged = tmp_path / "there/runs/run/checkpoints/step-00000020/model.safetensors"
    damaged.write_bytes(b"damaged")
    meeting = (tmp_path / "meeting").as_uri()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", AGREE, str(rank), meeting, each.folder.path, folder_uri],
            cwd=repository,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, each in enumerate((first, second))
    ]
    # The first has step 20 whole, the second cannot get it.
    assert [process.communicate(timeout=120)[0] for process in processes] == ["10 0\n", "10 1\n"]
    assert (first.steps, second.steps) == ([10], [10])


SETTINGS = {
    "phases": '[{"sequence_length": 16, "steps": 25}]',
    "checkpoint.every_steps": 6,
    "checkpoint.keep": 2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def train(tmp_path, corpus, folder_uri):
    """One start of a run's worker on a machine of the given name, with the address."""

    def start(machine, stop_after=-1):
        settings = SETTINGS | {"storage": folder_uri}
        run = Run(tmp_path / machine, "run", corpus, steps=25, settings=settings)
        return run, *train_here(run, stop_after, RemoteRun(folder_uri, "run"))

    return start


@pytest.mark.slow
def test_a_worker_goes_on_on_another_machine_with_the_same_bits(train, tmp_path, corpus):
    whole = Run(tmp_path / "whole", "run", corpus, steps=25, settings=SETTINGS)
    train_here(whole)
    train("first", stop_after=14)
    _, outcome, progress = train("second", stop_after=5)
    assert outcome == Outcome(19, stopped=True)
    assert "resuming from step 14" in progress[-1].messages
    (tmp_path / "second").rename(tmp_path / "lost")
    shutil.rmtree(tmp_path / "there/runs/run/checkpoints/step-00000019")
    run, _, progress = train("first")
    assert "resuming from step 18" in progress[-1].messages
    assert run.records() == whole.records()
    there = Run(tmp_path / "there", "run", corpus, steps=25)
    assert committed_checkpoints(there) == ["step-00000024", "step-00000025"]
    for name in committed_checkpoints(there):
        assert checkpoint_folder.damage(there.checkpoints / name) is None


def test_an_upload_that_fails_is_said_and_tried_again_with_the_next_checkpoint(train, tmp_path):
    there = tmp_path / "there" / "runs" / "run" / "checkpoints"
    there.mkdir(parents=True)
    (there / "step-00000012").write_text("in the way of a folder")
    run, outcome, progress = train("first")
    assert outcome == Outcome(25, stopped=False)
    (message,) = progress[-1].messages
    assert message.startswith("step-00000012 is on this machine alone, cannot ")
    assert str(there / "step-00000012") in message
    for name in committed_checkpoints(run):
        assert checkpoint_folder.damage(there / name) is None


@pytest.mark.slow
def test_an_address_out_of_reach_is_named(tmp_path, machine, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as query:
        pass
    first = machine("first", f"s3://bucket/runs?{query}")  # nobody listens there any more
    with pytest.raises(UserError, match=r"cannot list.*s3://bucket/runs/runs/run/checkpoints \("):
        first.remote.pull(first.folder)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_a_run_whose_machine_is_lost_goes_on_on_another(tmp_path, corpus, uri):
    steps = 300
    settings = {"checkpoint.every_steps": 40, "checkpoint.keep": 2, "evaluation.every_steps": 200}
    settings["tracking.uri"] = f"sqlite:///{tmp_path / 'mlflow.db'}"
    reference = Run(tmp_path / "reference", "run", corpus, steps, settings)
    reference.finish()

    def on(home, **changed):
        """The same command with another home folder, hence with a cluster and a copy of its own."""
        copy = tmp_path / home / storage_folder(uri).relative_to(Path.home())
        environment = {"HOME": str(tmp_path / home)}
        return Run(copy, "run", corpus, steps, settings | {"storage": uri} | changed, environment)

    there, first = RemoteFolder(uri), on("first")
    driver = first.start()
    manifest = "runs/run/checkpoints/step-00000080/manifest.json"
    driver.until(lambda: there.read(manifest) is not None, pause=0.1)
    driver.until_step(first.step() + 10)
    workers = training_workers()
    driver.kill()
    assert workers and not psutil.wait_procs(workers, timeout=60)[1]

    newest = max(name for name in there.names("runs/run") if name.endswith("manifest.json"))
    second = on("second")
    printed = second.finish()
    assert f"resuming from step {int(newest.split('step-')[1][:8])}" in printed
    assert f"address  {uri}" in printed and str(second.storage) in printed
    assert second.records() == reference.records()
    report = verify_exactly_once(second.folder)
    assert report.correct and report.num_metrics > 7 * steps, report
    names = {name.removeprefix("runs/run/") for name in there.names("runs/run")}
    assert {"summary.txt", "journal.jsonl", "artifacts/loss.png", "settings.yaml"} < names
    for name in ("model/model.safetensors", "journal.jsonl", "model/tokenizer.json"):
        assert there.read(f"runs/run/{name}") == (second.folder / name).read_bytes()

    assert f"finished     {steps:,} steps" in on("third").finish()
    assert "seed: 0 -> 1" in on("third", seed=1).finish(code=2)

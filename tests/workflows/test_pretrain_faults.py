"""Pre-training through long series of deaths, a change of workers, NaN, full and damaged disks."""

import json
import random
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from pretraining_runs import (
    Run,
    committed_checkpoints,
    find_writer,
    rank_one_beside,
    stop_inside_a_checkpoint_write,
    unfinished_checkpoints,
    write_corpus,
    writer_of,
)

from benchmarks.mlflow_server import MlflowServer
from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.special_tokens import num_embeddings
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import newest_checkpoint
from workflows.runs.sender import verify_exactly_once

pytestmark = [pytest.mark.slow, pytest.mark.ray]

STEPS = 300
SETTINGS = {"checkpoint.every_steps": 40, "evaluation.every_steps": 200}
NO_MOUNT = "a small file system cannot be mounted here (needs root)"
MOMENTS = ["worker", "worker in write"] * 5 + ["worker"] * 3 + ["driver"] * 3
MOMENTS += ["driver in write"] + ["server"] * 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def make_run(tmp_path, corpus, ray_cluster):
    """Makes runs of this test's own storage on the shared cluster."""

    def make(name, steps=STEPS, storage=None, **settings):
        environment = {"RAY_ADDRESS": ray_cluster, "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
        named = {key.replace("__", "."): value for key, value in settings.items()}
        return Run(storage or tmp_path / name, name, corpus, steps, SETTINGS | named, environment)

    return make


@pytest.fixture
def server(tmp_path):
    server = MlflowServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, corpus, ray_cluster):
    """A run that was told to stop half way, to be copied, and an uninterrupted one."""
    storage = tmp_path_factory.mktemp("stopped")
    environment = {"RAY_ADDRESS": ray_cluster}
    reference = Run(storage, "reference", corpus, STEPS, SETTINGS, environment)
    whole = reference.start()
    run = Run(storage, "stopped", corpus, STEPS, SETTINGS, environment)
    stop(run)
    assert whole.wait() == 0, whole.output()
    return run, reference


def stop(run, step=STEPS // 2):
    """Starts a run and tells it to stop at some step."""
    driver = run.start()
    driver.until_step(step)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()


def copied(run, storage, **settings):
    """The run's copy in another storage, to go on with other settings."""
    shutil.copytree(run.folder, storage / "runs" / run.name)
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return Run(storage, run.name, run.shards, run.steps, run.settings | named, run.environment)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_killed_at_twenty_moments_it_learns_the_same_bits(make_run, server, num_workers):
    run = killed_and_compared(make_run, server, num_workers, num_moments=20, steps=1500)
    report = verify_exactly_once(run.folder)
    assert report.correct and report.num_metrics > 7 * 1500, report


@pytest.mark.timeout(1200)
def test_an_adapted_run_killed_at_ten_moments_learns_the_same_bits(
    make_run, server, corpus, tmp_path
):
    tokenizer = load_tokenizer(corpus)
    config = SIZES["tiny"].model_copy(
        update={
            "vocab_size": num_embeddings(tokenizer),
            "num_hidden_layers": 1,
            "max_position_embeddings": 32,
        }
    )
    save_model_folder(tmp_path / "start", Bert.for_pretraining(config), tokenizer, "# A card\n")
    settings = {
        "start_from": tmp_path / "start",
        "vocabulary_size": 30_000,  # the default; the quickstart has another
        "rows__objective": "mlm",
        "rows__input_format": "full_sentences",
        "replay": write_corpus(tmp_path / "replay", num_documents=60, tokenizer=tokenizer),
        "replay_share": 0.1,
    }
    run = killed_and_compared(make_run, server, 1, num_moments=10, steps=900, **settings)
    assert [step for step, figures in run.records() if "heldout/perplexity" in figures][0] == 0


def killed_and_compared(make_run, server, num_workers, *, num_moments, steps, **settings):
    """A run that was killed at so many moments, equal to one that was not."""
    same = {"cluster__num_workers": num_workers, "cluster__max_failures": 100} | settings
    reference = make_run("reference", steps, **same)
    printed = reference.finish(seconds=600)
    assert f"finished     {steps:,} steps" in printed
    run = make_run("troubled", steps, tracking__uri=server.uri, **same)
    choose = random.Random(num_workers)
    moments = choose.sample(MOMENTS, num_moments)
    at = sorted(choose.sample(range(20, steps - 400), len(moments)))
    deaths = Deaths(run, server, choose)
    for step, moment in zip(at, moments, strict=True):
        deaths.happen(moment, step)
    assert deaths.driver.wait(600) == 0, deaths.driver.output()
    deaths.join()
    assert sorted(deaths.inside) == sorted(
        moment for moment in moments if moment.endswith("in write")
    )
    assert run.records() == reference.records()
    return run


class Deaths:
    """Kills parts of a run, and starts again what does not come back by itself."""

    def __init__(self, run, server, choose):
        self.run, self.server, self.choose = run, server, choose
        self.driver = run.start()
        self.inside = []  # the kills that hit a checkpoint write
        self._restart = None

    def happen(self, moment, step):
        """The death at a step, or, when that has passed, a few steps on."""
        self.driver.until_step(max(step, self.run.step() + 5), 300)
        worker = writer = writer_of(self.run)
        if moment == "server":
            worker.suspend()  # or the run would end while the server is still starting
            self.join()
            worker.resume()
            self.server.kill()
            self._restart = threading.Thread(target=self.server.start)
            self._restart.start()
            return
        if moment.endswith("in write"):
            unfinished = stop_inside_a_checkpoint_write(self.driver, worker)
        elif other := rank_one_beside(worker):
            worker = self.choose.choice([worker, other])
        if moment.startswith("driver"):
            self.driver.kill()
        else:
            worker.kill()
        if moment.endswith("in write"):
            assert unfinished in unfinished_checkpoints(self.run)
            self.inside.append(moment)
        if moment.startswith("driver"):
            self.driver = self.run.start()
        self.driver.until(lambda: find_writer(self.run) not in (None, writer), 300, pause=0.3)

    def join(self):
        """Waits until the server answers again."""
        if self._restart is not None:
            self._restart.join()


@pytest.mark.timeout(1200)
def test_two_workers_become_one(make_run, tmp_path):
    dropout = {"model__hidden_dropout_prob": 0.0, "model__attention_probs_dropout_prob": 0.0}
    two = make_run("two", cluster__num_workers=2, **dropout)
    stop(two, step=100)
    first = two.step()
    one = copied(two, tmp_path / "one", cluster__num_workers=1)
    # As many workers as there is room for: of two that want two CPUs each, one.
    room = {"cluster__num_workers": "[1,2]", "cluster__cpus_per_worker": 2}
    elastic = copied(two, tmp_path / "elastic", **room)
    for run in (two, one, elastic):
        assert f"resuming from step {first}" in run.finish()
    assert elastic.records() == one.records()
    ours, theirs = (
        {step: each["train/loss"] for step, each in run.records() if "train/loss" in each}
        for run in (one, two)
    )
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    worst = max(abs(ours[step] - theirs[step]) for step in range(first + 1, first + 21))
    print(f"20 steps after two workers became one, losses differ by {worst:.2g} at most")
    assert worst < 1e-5
    assert ours != theirs  # it was another number of workers


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint(stopped, tmp_path):
    run = copied(stopped[0], tmp_path, optimizer__peak_learning_rate=1e30)
    recipe = json.loads((run.folder / "recipe.json").read_text())
    recipe["optimizer"]["peak_learning_rate"] = 1e30  # what the command alone would refuse
    (run.folder / "recipe.json").write_text(json.dumps(recipe))
    before = run.step()
    output = run.finish(code=2)
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert (
        f"step {before + 2}: loss nan" in line and "a lower --optimizer.peak_learning_rate" in line
    )
    assert "Traceback" not in output
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path is not None and path.name == f"step-{before:08d}" and not damaged


def test_a_worker_lost_too_often_ends_the_run_in_one_line(make_run, stopped):
    run = make_run("lost", cluster__max_failures=0)
    driver = run.start()
    driver.until_step(60)
    writer_of(run).kill()
    assert driver.wait() == 2, driver.output()
    (line,) = (line for line in driver.output().splitlines() if line.startswith("error: "))
    assert "workers were lost more than 0 times" in line and "--cluster.max_failures" in line
    assert "Traceback" not in driver.output()
    assert "resuming from step 40" in run.finish()
    assert run.records() == stopped[1].records()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip(NO_MOUNT)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    stopped, make_run, tmp_path, small_disk
):
    tracked = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = make_run("full", storage=small_disk, tracking__uri=tracked)
    driver = run.start()
    driver.until_step(60)
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        file.write(bytes(shutil.disk_usage(small_disk).free - 1_000_000))
    before = committed_checkpoints(run)[-1]
    assert driver.wait() == 2, driver.output()
    (line,) = (line for line in driver.output().splitlines() if line.startswith("error: "))
    assert "no room for the checkpoint of step" in line and str(run.checkpoints) in line
    assert "the checkpoint before is intact" in line and "Traceback" not in driver.output()
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path is not None and path.name == before and not damaged
    assert not list(unfinished_checkpoints(run))
    filler.unlink()
    assert f"resuming from step {int(before.removeprefix('step-'))}" in run.finish()
    assert run.records() == stopped[1].records()


def test_damaged_checkpoints_are_named_and_the_one_before_is_used(stopped, tmp_path):
    run = copied(stopped[0], tmp_path)
    *_, good, flipped, truncated = committed_checkpoints(run)
    flip_a_bit(run.checkpoints / flipped / "model.safetensors")
    weights = run.checkpoints / truncated / "optimizer.safetensors"
    with weights.open("rb+") as file:
        file.truncate(weights.stat().st_size // 2)
    output = run.finish()
    assert f"{truncated} is damaged and passed over: optimizer.safetensors has" in output
    assert f"{flipped} is damaged and passed over: model.safetensors does not match" in output
    assert f"resuming from step {int(good.removeprefix('step-'))}" in output
    assert run.records() == stopped[1].records()


def flip_a_bit(path: Path):
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 16]))

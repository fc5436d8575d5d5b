"""Pre-training through XLA on simulated TPU hosts, killed, stopped and moved to torch and back."""

import os
import shutil
import signal

import pytest
from pretraining_runs import (
    Run,
    committed_checkpoints,
    find_writer,
    rank_one_beside,
    train_here,
    write_corpus,
    writer_of,
)
from tpu_nodes import compiled_by_workers, host_of, tpu_cluster

from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from workflows.pretrain import main

STEPS = 500
COMPARED = 50
"""Steps after torch over which sums in another order change a loss by so little as is asked."""
NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}
CALM = {"optimizer.peak_learning_rate": 1e-3}
"""At 2e-3 torch on one thread and on two are 100 times as far apart after 200 steps."""
SETTINGS = NO_DROPOUT | CALM | {"checkpoint.every_steps": 20, "evaluation.every_steps": 40}
ON_TPU = {"profile": "tpu-v4-16", "precision": "float32", "cluster.max_failures": 5}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster with one slice of two hosts."""
    with tpu_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slice_environment(cluster):
    """The environment of a command on it."""
    return {"RAY_ADDRESS": cluster.address}


@pytest.fixture(scope="module")
def by_torch(tmp_path_factory, corpus):
    """The run on CPU by torch, and a copy of it as it was after 12 steps."""
    run = Run(tmp_path_factory.mktemp("torch"), "moved", corpus, STEPS, SETTINGS)
    train_here(run, stop_after=12)
    begun = tmp_path_factory.mktemp("begun")
    shutil.copytree(run.folder, begun / "runs" / run.name)
    train_here(run)
    return run, begun


@pytest.fixture(scope="module")
def story(by_torch, slice_environment):
    """Begun by torch, it goes on by XLA, loses both workers in turn, is stopped, ends by torch."""
    reference, storage = by_torch
    settings = SETTINGS | ON_TPU
    run = Run(storage, "moved", reference.shards, STEPS, settings, slice_environment)
    driver = run.start()
    driver.until_step(50, 300)
    first = writer_of(run)
    first.kill()
    driver.until(lambda: find_writer(run) not in (None, first), 300, pause=0.2)
    driver.until_step(110, 300)
    other = rank_one_beside(writer_of(run))
    assert other is not None
    assert {host_of(writer_of(run)), host_of(other)} == {("slice-0", 0), ("slice-0", 1)}
    other.kill()
    driver.until(lambda: find_writer(run) is None, 120, pause=0.05)
    driver.until(lambda: find_writer(run) is not None and run.step() >= 170, 300)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path is not None and not damaged
    checkpoint = read_checkpoint(path)
    back = Run(storage, "moved", reference.shards, STEPS, SETTINGS)
    _, progress = train_here(back)
    return driver, checkpoint, back, progress


def losses(run):
    return {step: each["train/loss"] for step, each in run.records() if "train/loss" in each}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_through_xla_and_back_the_losses_are_those_of_torch(by_torch, story):
    reference, _ = by_torch
    driver, checkpoint, run, progress = story
    ours, theirs = losses(run), losses(reference)
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    differences = {step: abs(ours[step] - theirs[step]) for step in ours}
    assert differences[13] < 1e-5, "the first step by XLA, of torch's checkpoint"
    near = [differences[step] for step in range(1, 13 + COMPARED)]
    assert max(near) < 5e-5, near
    assert max(differences.values()) < 1e-4, "the same rows and masks to the end"
    assert checkpoint.step >= 170
    assert f"resuming from step {checkpoint.step}" in progress[-1].messages
    heldout = [
        {name: value for name, value in each.items() if name.startswith("heldout/")}
        for run in (run, reference)
        for step, each in run.records()
        if step == 40
    ]
    ours, theirs = (each for each in heldout if each)
    assert ours == pytest.approx(theirs, rel=2e-5) and "heldout/perplexity" in ours


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_two_hosts_trained_and_wrote_what_made_it(story):
    driver, checkpoint, _, _ = story
    assert "resuming from step 12" in driver.output()
    assert f"stopped after step {checkpoint.step}; the same command" in driver.output()
    assert (checkpoint.world_size, checkpoint.extra["device"]) == (2, "cpu")
    assert checkpoint.extra["settings"]["cluster"]["tpu"] == "v4"


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_the_next_loss_by_torch_is_that_of_xla(story, slice_environment, tmp_path):
    """From the very checkpoint that torch has gone on with, once more by XLA."""
    _, checkpoint, back, _ = story
    again = Run(tmp_path, "moved", back.shards, STEPS, SETTINGS | ON_TPU, slice_environment)
    shutil.copytree(back.folder, again.folder)
    for name in committed_checkpoints(again):
        if name > checkpoint.path.name:
            shutil.rmtree(again.checkpoints / name)
    (again.folder / "summary.txt").unlink(missing_ok=True)
    again.finish(seconds=500)
    ours, theirs = losses(again), losses(back)
    step = checkpoint.step + 1
    assert abs(ours[step] - theirs[step]) < 1e-5
    near = range(step, step + COMPARED)
    assert max(abs(ours[step] - theirs[step]) for step in near) < 5e-5


@pytest.mark.slow
@pytest.mark.ray
def test_each_phase_is_compiled_once_by_each_worker(tmp_path, corpus, cluster, slice_environment):
    before = compiled_by_workers(cluster)
    phases = '[{"sequence_length": 16, "steps": 10}, {"sequence_length": 32, "steps": 10}]'
    fast = {"preset": "base-fast", "phases": phases, "evaluation.every_steps": 5}
    run = Run(tmp_path, "phases", corpus, 20, SETTINGS | ON_TPU | fast, slice_environment)
    assert "8 rows each, padded" in run.finish(seconds=300)
    after = compiled_by_workers(cluster)
    counts = [each for name, each in after.items() if name not in before and each["step"]]
    assert [(count["step"], count["share"]) for count in counts] == [(2, 2), (2, 2)]


@pytest.mark.ray
def test_without_a_tpu_it_gets_one_line(tmp_path, capsys, corpus, ray_cluster, monkeypatch):
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", ray_cluster)
    run = Run(
        tmp_path, "nowhere", corpus, 5, {"profile": "tpu-v5e-16"} | {"batch.global_batch_size": 16}
    )
    assert main(run.arguments()) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no TPU found: Ray sees ") and " with 2 CPU (" in line


@pytest.mark.slow
@pytest.mark.ray
def test_a_storage_that_hosts_cannot_reach_gets_one_line(tmp_path, corpus, slice_environment):
    """The folder that a process works in is another one to each process, as on several machines."""
    settings = ON_TPU | {"storage": "/proc/self/cwd"}
    run = Run(tmp_path, "nowhere", corpus, 5, settings, slice_environment)
    *_, line = run.finish(code=2).splitlines()
    assert line.startswith(
        "error: 2 of 2 other nodes cannot reach the folder: /proc/self/cwd/runs/"
    )
    assert "give --storage" in line
    assert find_writer(run) is None and not committed_checkpoints(run)


@pytest.mark.slow
@pytest.mark.ray
def test_more_slices_than_there_are_get_one_line(tmp_path, corpus, slice_environment):
    settings = ON_TPU | {"cluster.num_slices": 2}
    run = Run(tmp_path, "many", corpus, 5, settings, slice_environment)
    *_, line = run.finish(code=2).splitlines()
    assert line.startswith("error: 1 whole TPU slices v4 2x2x2 found, 2 needed: Ray sees ")
    assert line.count("1 CPU, 4 TPU") == 2 and "in slice slice-0 of 2x2x2" in line

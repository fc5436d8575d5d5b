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
from tpu_nodes import tpu_cluster

from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from workflows.pretrain import main

STEPS = 500
COMPARED = 50
"""Steps after torch over which sums in another order change a loss by so little as is asked."""
NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}
SETTINGS = NO_DROPOUT | {"checkpoint.every_steps": 20, "evaluation.every_steps": 40}
ON_TPU = {"profile": "tpu-v4-16", "precision": "float32", "cluster.max_failures": 5}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def slice_environment():
    """The environment of a command on a cluster with one slice of two hosts."""
    with tpu_cluster() as cluster:
        yield {"RAY_ADDRESS": cluster.address}


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
    assert other is not None, "one worker on each host"
    other.kill()
    driver.until(lambda: find_writer(run) is None, 120, pause=0.05)
    driver.until(lambda: find_writer(run) is not None and run.step() >= 170, 300)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path is not None and not damaged
    checkpoint = read_checkpoint(path)
    back = Run(storage, "moved", reference.shards, STEPS, SETTINGS)
    _, news = train_here(back)
    return driver, checkpoint, back, news


def losses(run):
    return {step: each["train/loss"] for step, each in run.records() if "train/loss" in each}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_through_xla_and_back_the_losses_are_those_of_torch(by_torch, story):
    reference, _ = by_torch
    driver, checkpoint, run, news = story
    ours, theirs = losses(run), losses(reference)
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    differences = {step: abs(ours[step] - theirs[step]) for step in ours}
    assert differences[13] < 1e-5, "the first step by XLA, of torch's checkpoint"
    near = [differences[step] for step in range(1, 13 + COMPARED)]
    assert max(near) < 5e-5, near
    assert max(differences.values()) < 0.02, "the same rows and masks to the end"
    assert checkpoint.step >= 170
    assert f"going on from step {checkpoint.step}" in news[-1]["messages"]
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
    assert "going on from step 12" in driver.output()
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


@pytest.mark.ray
def test_without_a_tpu_it_gets_one_line(tmp_path, capsys, corpus, ray_cluster, monkeypatch):
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", ray_cluster)
    run = Run(
        tmp_path, "nowhere", corpus, 5, {"profile": "tpu-v5e-16"} | {"batch.global_batch_size": 16}
    )
    assert main(run.arguments()) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no TPU found: Ray sees ") and " with 2 CPU (" in line

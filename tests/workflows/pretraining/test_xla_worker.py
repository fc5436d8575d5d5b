"""The worker of a TPU host, alone: its chips are CPU devices."""

import shutil

import jax
import pytest
import torch
from pretraining_runs import Channel, Run, StoppingWorker, train_here, write_corpus
from xla_pretraining import open_run, train, train_with_little_room

from bert_core.errors import UserError
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from workflows.messages import Outcome
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import pretraining_parts
from workflows.settings import parse_command_line
from workflows.training import xla_backend
from workflows.training.xla_backend import XlaBackend

STEPS = 12
SETTINGS = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "checkpoint.every_steps": 100,
    "evaluation.every_steps": 8,
}


FAST = {
    "preset": "base-fast",
    "precision": "float32",
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "batch.global_batch_size": 12,
    "batch.micro_batch_size": 4,
    "phases": '[{"sequence_length": 16, "steps": 4}, {"sequence_length": 32, "steps": 4}]',
    "optimizer.warmup_steps": 3,
    "optimizer.peak_learning_rate": 2e-2,
}
"""`base-fast` in small, its steps so large that what is wrong with an update shows in losses."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def losses(run):
    return {step: each["train/loss"] for step, each in run.records() if "train/loss" in each}


@pytest.mark.slow
def test_from_torch_through_xla_and_back(tmp_path, corpus, in_xla):
    whole = Run(tmp_path / "torch", "run", corpus, STEPS, SETTINGS)
    train_here(whole, stop_after=4)
    moved = Run(tmp_path / "moved", "run", corpus, STEPS, SETTINGS)
    shutil.copytree(whole.folder, moved.folder)
    train_here(whole)

    outcome, messages, _ = in_xla(train, moved, 5)
    assert outcome.stopped and 9 <= outcome.step <= 10, "it hears of a stop a step late"
    path, _ = newest_checkpoint(moved.checkpoints)
    info = read_checkpoint(path)
    assert info.step == outcome.step
    assert info.extra["device"] == "cpu" and info.extra["processor"] == "cpu"
    assert "resuming from step 4" in messages
    train_here(moved)

    ours, theirs = losses(moved), losses(whole)
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    differences = {step: abs(ours[step] - theirs[step]) for step in ours}
    assert max(differences.values()) < 5e-5, differences
    for step in (5, outcome.step + 1):
        assert differences[step] < 1e-5, "the first step on the other side"
    ours, theirs = (heldout(run, 8) for run in (moved, whole))
    assert ours == pytest.approx(theirs, rel=2e-5) and "heldout/perplexity" in ours


@pytest.mark.slow
def test_the_fast_recipe_on_a_tpus_profile_is_that_of_padded_rows(tmp_path, corpus, in_xla):
    """LAMB, clipped, with several micro-batches and two phases, of which one finds little room."""
    padded = Run(tmp_path / "torch", "run", corpus, 8, FAST | {"batch.packed": "false"})
    train_here(padded)
    on_tpu = Run(tmp_path / "tpu", "run", corpus, 8, FAST | {"profile": "tpu-v6e-16"})
    outcome, messages, settings = in_xla(train_with_little_room, on_tpu, (4, 32))
    assert settings.optimizer.name == "lamb" and settings.compile
    assert outcome == Outcome(8, stopped=False)
    ours, theirs = losses(on_tpu), losses(padded)
    assert ours.keys() == theirs.keys() == set(range(1, 9))
    differences = {step: abs(ours[step] - theirs[step]) for step in ours}
    assert max(differences.values()) < 5e-5, differences
    assert ours[8] < ours[1] - 0.2, "it learns"
    assert max(each.get("train/gradient_norm", 0) for _, each in on_tpu.records()) > 1, "clipped"
    assert messages == ["step 5: too little room on a chip, a micro-batch is computed in 2 parts"]


def heldout(run, at):
    (figures,) = (
        each for step, each in run.records() if step == at and "heldout/perplexity" in each
    )
    return figures


@pytest.mark.parametrize("through_xla", [True, False])
def test_a_tpu_worker_computes_with_xla(tmp_path, corpus, through_xla):
    run = Run(tmp_path, "run", corpus, STEPS, SETTINGS)
    settings = parse_command_line(PretrainSettings, run.arguments())
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel(), through_xla=through_xla)
    parts = pretraining_parts(settings, corpus, worker, run.folder)
    assert isinstance(parts.backend, XlaBackend) is through_xla
    first, second = (next(parts.batches(step)).micro_batches[0] for step in (0, 1))
    assert (first.num_slots == second.num_slots == 8 * 32) is through_xla, "static shapes"


def test_its_share_is_by_jax_and_not_by_ray(tmp_path, corpus, monkeypatch):
    here = open_run(Run(tmp_path, "run", corpus, STEPS, SETTINGS))
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    step = next(here.parts.batches(0))
    assert sum(len(batch.next_sentence) for batch in step.micro_batches) == 4
    assert step.num_rows == 8


@pytest.mark.parametrize(
    ("message", "raised"), [("RESOURCE_EXHAUSTED: 17 GiB", UserError), ("INTERNAL", None)]
)
def test_a_chip_without_room_is_the_users_to_mend(tmp_path, corpus, monkeypatch, message, raised):
    def full(*_, **__):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(xla_backend, "XlaTraining", full)
    here = open_run(Run(tmp_path, "run", corpus, STEPS, SETTINGS))
    with pytest.raises(raised or jax.errors.JaxRuntimeError, match="out of memory|INTERNAL"):
        here.train()

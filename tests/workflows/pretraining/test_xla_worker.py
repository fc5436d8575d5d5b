"""The worker of a TPU host in this process, alone: its chips are one CPU device."""

import shutil

import jax
import pytest
import torch
from pretraining_runs import Channel, Run, StoppingWorker, train_here, write_corpus

from bert_core.errors import UserError
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from bert_core.training.xla.compilation import Programs
from workflows.pretraining import xla_worker
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import PretrainingRun, open_pretraining
from workflows.pretraining.xla_worker import XlaPretrainingRun
from workflows.settings import parse_command_line

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


def open_run(run, stop_after=-1):
    """The run as a worker of a TPU opens it."""
    settings = parse_command_line(PretrainSettings, run.arguments())
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel(), through_xla=True)
    worker.steps_left = stop_after
    config = {"settings": settings.model_dump(mode="json"), "shards": str(run.shards)}
    run.folder.mkdir(parents=True, exist_ok=True)
    return open_pretraining(config, worker, run.folder, None)


def losses(run):
    return {step: each["train/loss"] for step, each in run.records() if "train/loss" in each}


@pytest.mark.slow
def test_from_torch_through_xla_and_back(tmp_path, corpus):
    whole = Run(tmp_path / "torch", "run", corpus, STEPS, SETTINGS)
    train_here(whole, stop_after=4)
    moved = Run(tmp_path / "moved", "run", corpus, STEPS, SETTINGS)
    shutil.copytree(whole.folder, moved.folder)
    train_here(whole)

    here = open_run(moved, stop_after=5)
    outcome = here.train()
    assert outcome["stopped"] and 9 <= outcome["step"] <= 10, "it hears of a stop a step late"
    path, _ = newest_checkpoint(moved.checkpoints)
    info = read_checkpoint(path)
    assert info.step == outcome["step"]
    assert info.extra["device"] == "cpu" and info.extra["processor"] == "cpu"
    assert "going on from step 4" in here.messages
    train_here(moved)

    ours, theirs = losses(moved), losses(whole)
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    differences = {step: abs(ours[step] - theirs[step]) for step in ours}
    assert max(differences.values()) < 5e-5, differences
    for step in (5, outcome["step"] + 1):
        assert differences[step] < 1e-5, "the first step on the other side"
    ours, theirs = (heldout(run, 8) for run in (moved, whole))
    assert ours == pytest.approx(theirs, rel=2e-5) and "heldout/perplexity" in ours


def test_the_fast_recipe_on_a_tpus_profile_is_that_of_padded_rows(tmp_path, corpus, monkeypatch):
    """LAMB, clipped, with several micro-batches and two phases, of which one finds little room."""
    padded = Run(tmp_path / "torch", "run", corpus, 8, FAST | {"batch.packed": "false"})
    train_here(padded)
    on_tpu = Run(tmp_path / "tpu", "run", corpus, 8, FAST | {"profile": "tpu-v6e-16"})
    monkeypatch.setattr(Programs, "of", refusing_long_micro_batches(Programs.of))
    here = open_run(on_tpu)
    assert here.settings.optimizer.name == "lamb" and here.settings.compile
    assert here.train() == {"step": 8, "stopped": False}
    ours, theirs = losses(on_tpu), losses(padded)
    assert ours.keys() == theirs.keys() == set(range(1, 9))
    differences = {step: abs(ours[step] - theirs[step]) for step in ours}
    assert max(differences.values()) < 5e-5, differences
    assert ours[8] < ours[1] - 0.2, "it learns"
    assert max(each.get("train/gradient_norm", 0) for _, each in on_tpu.records()) > 1, "clipped"
    assert here.messages == [
        "step 5: too little room on a chip, a micro-batch is computed in 2 parts"
    ]


def refusing_long_micro_batches(compiled):
    """The method `of` of programs of a compiler without room for 4 rows of 32 tokens in a step."""

    def of(programs, kind, function, *arguments):
        if kind == "step" and arguments[3]["input_ids"].shape[1:] == (4, 32):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm")
        return compiled(programs, kind, function, *arguments)

    return of


def heldout(run, at):
    (figures,) = (
        each for step, each in run.records() if step == at and "heldout/perplexity" in each
    )
    return figures


@pytest.mark.parametrize(
    ("through_xla", "kind"), [(True, XlaPretrainingRun), (False, PretrainingRun)]
)
def test_a_worker_of_a_tpu_computes_by_xla_and_no_other(tmp_path, corpus, through_xla, kind):
    run = Run(tmp_path, "run", corpus, STEPS, SETTINGS)
    settings = parse_command_line(PretrainSettings, run.arguments())
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel(), through_xla=through_xla)
    config = {"settings": settings.model_dump(mode="json"), "shards": str(corpus)}
    here = open_pretraining(config, worker, run.folder, None)
    assert type(here) is kind
    first, second = (next(here.batches(step)).micro_batches[0] for step in (0, 1))
    assert (first.num_slots == second.num_slots == 8 * 32) is through_xla, "shapes that stay"


def test_its_share_is_by_jax_and_not_by_ray(tmp_path, corpus, monkeypatch):
    here = open_run(Run(tmp_path, "run", corpus, STEPS, SETTINGS))
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    step = next(here.batches(0))
    assert sum(len(batch.next_sentence) for batch in step.micro_batches) == 4
    assert step.num_rows == 8


@pytest.mark.parametrize(
    ("message", "raised"), [("RESOURCE_EXHAUSTED: 17 GiB", UserError), ("INTERNAL", None)]
)
def test_a_chip_without_room_is_the_users_to_mend(tmp_path, corpus, monkeypatch, message, raised):
    def full(*_, **__):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(xla_worker, "XlaTraining", full)
    here = open_run(Run(tmp_path, "run", corpus, STEPS, SETTINGS))
    with pytest.raises(raised or jax.errors.JaxRuntimeError, match="out of memory|INTERNAL"):
        here.train()

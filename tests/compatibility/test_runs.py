"""Checkpoints of an older version: the run resumes and learns what it did then."""

import shutil

import pytest
import torch
from finetuning_runs import finetune_here
from fixture_places import (
    FIXTURES,
    RESUME_FROM,
    SHARDS,
    TASK,
    assert_alike,
    finetuning_run,
    pretraining_run,
    recorded,
)
from pretraining_runs import train_here

from bert_core.machine import processor_name
from bert_core.text.shards import open_shards
from workflows.finetune import opened_job, parse
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import open_run
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


@pytest.mark.parametrize("name", ["pretraining", "finetuning"])
def test_a_run_resumes_and_its_next_steps_are_as_recorded(tmp_path, name):
    run = {"pretraining": pretraining_run, "finetuning": finetuning_run}[name](tmp_path)
    shutil.copytree(FIXTURES / "runs" / name, run.folder)
    if name == "pretraining":
        _, progress = train_here(run)
    else:
        places = {"data": TASK / "data", "model": TASK / "encoder"}
        _, _, progress = finetune_here(tmp_path, **places, name=name, **run.settings)
    assert any(f"step {RESUME_FROM[name]}" in text for each in progress for text in each.messages)
    found = [[step, metrics] for step, metrics in run.records()]
    before = recorded()
    here = (processor_name(torch.device("cpu")), torch.__version__)
    is_same_machine = here == (before["processor"], before["torch"])
    assert_alike(found, before[name], 0.0 if is_same_machine else 1e-6)


def test_the_commands_take_the_runs_for_their_own(tmp_path):
    """The settings that decide a run, and the hash of its data, are what they were."""
    shutil.copytree(FIXTURES / "runs", tmp_path / "runs")
    settings = parse_command_line(PretrainSettings, pretraining_run(tmp_path).arguments())
    recipe = settings.recipe() | {"data": open_shards(SHARDS).data_hash}
    with open_run(tmp_path, "pretraining", recipe, fresh=False) as folder:
        assert not folder.is_trained()
    settings = parse(finetuning_run(tmp_path).arguments())
    with opened_job(settings, open_storage(str(tmp_path))) as job:
        assert not job.folder.is_trained()

"""What every training run does the same; the whole of a run is tested with its kind."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from finetuning_runs import finetune_here, write_encoder, write_task
from storage_addresses import folder_address

from bert_core.errors import UserError
from workflows.run_settings import RunSettings
from workflows.training_run import place_of_run, train_alone


def test_a_worker_works_in_the_run_folder_or_in_a_copy_of_the_address(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    there = tmp_path / "runs" / "run"
    assert place_of_run(RunSettings(storage=str(tmp_path)), there) == (there, None)
    settings = RunSettings(storage=folder_address(tmp_path / "address"))
    folder, remote = place_of_run(settings, there)
    assert folder.name == "run" and (tmp_path / "home") in folder.parents
    assert remote is not None


def test_a_full_device_names_the_remedy(tmp_path):
    class Full:
        worker = SimpleNamespace(rank=1, device=torch.device("cpu"))

        def train(self):
            raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(UserError, match=r"the device is out of memory: cpu \(buy more\)"):
        train_alone(Full(), out_of_memory_remedy="buy more")


def test_a_run_that_goes_on_under_other_threads_says_so(tmp_path, monkeypatch):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    finetune_here(tmp_path, 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    _, outcome, news = finetune_here(tmp_path, 2)
    assert outcome == {"step": 7, "stopped": True}
    said = " ".join(news[-1]["messages"])
    assert "going on from step 5" in said and "7 threads where there were 1" in said
    assert news[-1]["total_steps"] == 36
    assert Path(tmp_path / "runs" / "run" / "worker.lock").exists() is False

"""What every training run does the same; the whole of a run is tested with its kind."""

import torch
from finetuning_runs import finetune_here, write_encoder, write_task

from workflows.messages import Outcome


def test_a_run_that_goes_on_under_other_threads_says_so(tmp_path, monkeypatch):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    finetune_here(tmp_path, 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    _, outcome, progress = finetune_here(tmp_path, 2)
    assert outcome == Outcome(7, stopped=True)
    said = " ".join(progress[-1].messages)
    assert "going on from step 5" in said and "7 threads where there were 1" in said
    assert progress[-1].total_steps == 36

"""A task of the pre-training benchmark that takes a moment, and its CUDA arms without compiler."""

import torch

from benchmarks.pretraining import arms as pretraining_arms
from benchmarks.pretraining.arms import Task, make_rows
from bert_core.config import SIZES

CPU = torch.device("cpu")


def small_task(*, natural=True, rows=8, attention_dropout=0.0):
    """Two layers of 128, rows of 32."""
    values = {"vocab_size": 300, "attention_probs_dropout_prob": attention_dropout}
    config = SIZES["tiny"].model_copy(update=values)
    return Task(config, make_rows(300, rows, 32, natural=natural), CPU, autocast_dtype=None)


def without_compiler(monkeypatch):
    """Lets what is compiled run as it is written, for compiling takes minutes on a CPU."""
    monkeypatch.setattr(pretraining_arms, "compiled", lambda loss: loss)
    monkeypatch.setattr(torch, "compile", lambda run, **_: run)

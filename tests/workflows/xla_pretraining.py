"""Pre-training by the worker of a TPU host, in the process that `in_xla` calls: two CPU devices.

JAX is loaded within functions: the tests import this module too.
"""

import torch
from pretraining_runs import Channel, StoppingWorker

from bert_core.training.xla.program import Programs
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import pretraining_parts
from workflows.settings import parse_command_line
from workflows.training.run import TrainingRun


def open_run(run, stop_after=-1):
    """The run as a worker of a TPU opens it."""
    settings = parse_command_line(PretrainSettings, run.arguments())
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel(), through_xla=True)
    worker.steps_left = stop_after
    run.folder.mkdir(parents=True, exist_ok=True)
    parts = pretraining_parts(settings, run.shards, worker, run.folder)
    return TrainingRun(parts, worker, run.folder)


def train(run, stop_after=-1):
    """What training says of its end, what the run has said, and the settings it had."""
    here = open_run(run, stop_after)
    return here.train(), here.messages, here.parts.settings


def train_with_little_room(run, shape):
    """`train` by a compiler without room for micro-batches of (rows, tokens a row) in a step."""
    import jax

    compiled = Programs.of

    def of(programs, kind, function, *arguments):
        if kind == "step" and arguments[3]["input_ids"].shape[1:] == shape:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm")
        return compiled(programs, kind, function, *arguments)

    Programs.of = of
    try:
        return train(run)
    finally:
        Programs.of = compiled

"""What a demo's encoder learns: a model folder goes in; six fine-tuning runs and a report come out.

Three tasks made of documentation, each with the encoder and with the weights it began with.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import TASKS
from bert_core.training.settings import FinetuningOptimizerSettings
from workflows.demonstration.questions import questions_about, write_questions
from workflows.demonstration.report import compared, write_report
from workflows.finetune import opened_job
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.settings import TaskRunSettings, settings_class
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.storage import Storage
from workflows.training.job import train_and_register
from workflows.training.run_settings import CheckpointSettings

if TYPE_CHECKING:
    from workflows.demo import DemoSettings

PRETRAINED, UNTRAINED = "pretrained", "untrained"
"""The two encoders; the names of runs say which."""

LEARNED = ("docs_library", "docs_parameters", "docs_answers")
"""The tasks; all are learned alike."""

EPOCHS = 3
"""With the examples that are the default: see docs/decisions.md for what more of them gave."""
PEAK_LEARNING_RATE = 1e-3
"""Larger than the paper's, for an encoder this small: of 1e-3 and 3e-4 the better one where both
were tried (docs_parameters, pre-trained)."""


def untrained_encoder(pretrained: Path, folder: Path) -> Path:
    """Writes, unless it is there, a model folder of the same shape and tokenizer.

    Its weights are drawn from the seed of the quickstart: those that its pre-training began with.
    """
    if not folder.exists():
        config, model, tokenizer = load_model_folder(pretrained)
        torch.manual_seed(PretrainSettings.model_fields["seed"].default)
        fresh = Bert.for_pretraining(config, next_sentence="next_sentence" in model.heads)
        card = f"# An encoder that has learned nothing\n\nOf the shape of {pretrained.parent.name}."
        save_model_folder(folder, fresh, tokenizer, card + "\n")
    return folder


def learn_and_compare(
    settings: "DemoSettings", storage: Storage, pretrained: Path, folder: Path
) -> bool:
    """Fine-tunes both encoders on all tasks, in turn; report and questions go to `folder`.

    False when it was told to stop.
    """
    untrained = untrained_encoder(pretrained, folder / UNTRAINED)
    encoders = {PRETRAINED: pretrained, UNTRAINED: untrained}
    wanted = [(task, kind) for task in LEARNED for kind in encoders]
    print(f"tasks    {', '.join(LEARNED)}: reading {settings.data}", flush=True)
    with ExitStack() as opened:
        jobs: dict[tuple[str, str], FinetuningJob] = {}
        for number, (task, kind) in enumerate(wanted, start=1):
            job_settings = finetune_settings(settings, task, encoders[kind])
            job = opened.enter_context(opened_job(job_settings, storage, kind))
            job.title = f"{number} of {len(wanted)} {task} {kind}"
            jobs[task, kind] = job
        left = [job for job in jobs.values() if not job.folder.summary.exists()]
        if left and not train_and_register(left):
            return False
        results = [compared(jobs[task, UNTRAINED], jobs[task, PRETRAINED]) for task in LEARNED]
    trained = {task.removeprefix("docs_"): jobs[task, PRETRAINED] for task in LEARNED}
    write_questions(questions_about(trained), folder)
    write_report(results, folder)
    return True


def finetune_settings(settings: "DemoSettings", task: str, encoder: Path) -> TaskRunSettings:
    """The settings of one of the fine-tuning runs."""
    options = TASKS[task].model_copy(update={"max_examples": settings.max_examples})
    return settings_class(task)(
        data=settings.data,
        model=str(encoder),
        storage=settings.storage,
        fresh=settings.fresh,
        options=options,
        epochs=EPOCHS,
        optimizer=FinetuningOptimizerSettings(peak_learning_rate=PEAK_LEARNING_RATE),
        checkpoint=CheckpointSettings(every_steps=250, keep=1),
    )

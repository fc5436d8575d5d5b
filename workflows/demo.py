"""Runs the whole pipeline on this machine: `python workflows/demo.py --help`, or `make demo`.

It pre-trains a small encoder on the documentation of installed packages, or, with --start_from,
continues the pre-training of one that exists, and fine-tunes it on three tasks made of the same
documentation. The baseline of each task is the same head on the weights before that training. Then
it serves the models and asks each route. The same command resumes after any failure; a finished
demo prints its table and serves.
"""

import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from bert_core.command_help import Example, Guide
from serving.registry import default_tracking_uri
from workflows.command import command
from workflows.demonstration.questions import FILE as QUESTIONS
from workflows.demonstration.questions import questions_about, read_questions, write_questions
from workflows.demonstration.serving import Serve, serve_demo
from workflows.model_location import locate_model
from workflows.pretrain import pretrain
from workflows.pretraining.settings import AdaptSettings, PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import Storage, open_storage
from workflows.settings import (
    CommandLineSettings,
    default_storage,
    parse_command_line,
    settings_hash,
)
from workflows.training.job import train_and_register
from workflows.training.run_settings import CheckpointSettings

if TYPE_CHECKING:
    from workflows.finetuning.job import FinetuningJob
    from workflows.finetuning.settings import TaskRunSettings

# Imports within functions load torch, which takes seconds: --help is answered before.

LEARNED = ("docs_library", "docs_parameters", "docs_answers")
"""The tasks; all are learned alike."""

SHORT_ADAPTATION = (
    "--phases", '[{"sequence_length": 128, "steps": 60}]',
    "--batch.global_batch_size", "16",
    "--optimizer.peak_learning_rate", "3e-4",
    "--evaluation.num_rows", "64",
)  # fmt: skip
"""What differs from the preset adapt, so that MiniLM takes under two minutes on two cores."""


@dataclass(frozen=True)
class Learning:
    """How much each task is learned: training examples, passes over them, examples of a step."""

    examples: int
    epochs: int
    batch_size: int


OF_PRETRAINED = Learning(2500, 3, 32)
"""See docs/decisions.md for what more examples and epochs gave."""
OF_ADAPTED = Learning(200, 2, 8)
"""Less, as an encoder like MiniLM is ten times as slow; small batches, for enough steps."""


class DemoSettings(CommandLineSettings):
    """Pre-trains a small encoder and compares it with its untrained start on three tasks.

    Pre-training is the quickstart of pretrain. With --start_from an encoder is adapted instead.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("the whole pipeline", ""),
            Example("with an encoder of your own", "--model models:/bert/1"),
            Example(
                "an encoder adapted to the documentation, compared with itself before that",
                "--start_from MODEL_FOLDER",
            ),
        ),
    )

    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and the MLflow store, or an address as in pretrain",
    )
    fresh: bool = Field(default=False, description="rename earlier runs and start over")
    model: str | None = Field(
        default=None,
        description="encoder to use instead of pre-training one: folder, models:/NAME@ALIAS, or"
        " run name",
    )
    start_from: str | None = Field(
        default=None,
        description="encoder to adapt instead of pre-training one, as in bertline adapt",
    )
    data: str = Field(
        default="docs://",
        description="documentation to make the tasks from: docs://[PACKAGE,…]",
    )
    max_examples: int | None = Field(
        default=None,
        ge=200,
        description=f"training examples of each task; default {OF_PRETRAINED.examples}, with "
        f"--start_from {OF_ADAPTED.examples}",
    )
    serve: Serve = Field(
        default="auto",
        description="serve the models at the end: yes, until Ctrl-C; auto, until Ctrl-C on a"
        " terminal; or no",
    )

    @model_validator(mode="after")
    def _one_encoder(self) -> Self:
        if self.model is not None and self.start_from is not None:
            raise ValueError("--model is used as it is, --start_from is adapted: give one of them")
        return self

    @property
    def learning(self) -> Learning:
        """How much each task is learned."""
        whole = OF_PRETRAINED if self.start_from is None else OF_ADAPTED
        return replace(whole, examples=self.max_examples or whole.examples)


main = command(lambda given: demo(parse_command_line(DemoSettings, given)))


def demo(settings: DemoSettings) -> bool:
    """Whatever is left of the demo; False when it was told to stop.

    Raises `UserError` for input that the user can fix.
    """
    encoder = trained_encoder(settings)
    if encoder is None:
        return False
    name, path = encoder
    storage = open_storage(settings.storage)
    folder = demo_folder(settings, storage, name)
    if settings.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    table = folder / "table.txt"
    is_finished = table.exists() and (folder / QUESTIONS).exists()
    if not is_finished and not learn_and_compare(settings, storage, path, folder):
        return False
    print(table.read_text(encoding="utf-8"), flush=True)
    questions = read_questions(folder)
    runs = {name: storage.folder / "runs" / run for name, run in questions.runs.items()}
    models = {"encoder": path} | {name: RunFolder(run).model for name, run in runs.items()}
    serve_demo(models, questions, folder, settings.serve)
    return True


def demo_folder(settings: DemoSettings, storage: Storage, encoder: str) -> Path:
    """Where table, picture, report and questions of an encoder lie."""
    values = {"data": settings.data, "max_examples": settings.learning.examples}
    return storage.folder / "demo" / f"{encoder}-{settings_hash(values)}"


def trained_encoder(settings: DemoSettings) -> tuple[str, Path] | None:
    """A name for the encoder, and its model folder; None when its training was told to stop."""
    if settings.model is not None:
        path = located(settings, settings.model)
        return path.parent.name if path.name == "model" else path.name, path
    options = ["--storage", settings.storage, *(["--fresh"] if settings.fresh else [])]
    if settings.start_from is None:
        run = pretrain(parse_command_line(PretrainSettings, options))
    else:
        options += ["--start_from", settings.start_from, "--text", settings.data]
        options += SHORT_ADAPTATION
        run = pretrain(parse_command_line(AdaptSettings, options))
    return None if run is None else (run.name, run.model)


def located(settings: DemoSettings, model: str) -> Path:
    """The folder of a model that is there."""
    storage = open_storage(settings.storage).folder
    return locate_model(model, storage, default_tracking_uri(storage))


def untrained_encoder(pretrained: Path, folder: Path) -> Path:
    """Writes, unless it is there, a model folder of the same shape and tokenizer.

    Its weights are drawn from the seed of the quickstart: those that its pre-training began with.
    """
    if not folder.exists():
        import torch

        from bert_core.model.bert import Bert
        from bert_core.model_folder import load_model_folder, save_model_folder

        config, model, tokenizer = load_model_folder(pretrained)
        torch.manual_seed(PretrainSettings.model_fields["seed"].default)
        fresh = Bert.for_pretraining(config, next_sentence="next_sentence" in model.heads)
        card = f"# An encoder that has learned nothing\n\nOf the shape of {pretrained.parent.name}."
        save_model_folder(folder, fresh, tokenizer, card + "\n")
    return folder


def learn_and_compare(
    settings: DemoSettings, storage: Storage, trained: Path, folder: Path
) -> bool:
    """Fine-tunes the encoder after and before its training on all tasks, in turn.

    Report and questions go to `folder`. False when it was told to stop.
    """
    from bert_core.model_folder import load_model_folder
    from workflows.demonstration import report
    from workflows.finetune import opened_job
    from workflows.finetuning.results import write_results

    folder.mkdir(parents=True, exist_ok=True)
    if settings.start_from is None:
        training, first = report.PRETRAINING, untrained_encoder(trained, folder / "untrained")
    else:
        training, first = report.ADAPTATION, located(settings, settings.start_from)
    width = load_model_folder(trained)[0].hidden_size
    before, after = training.run_kinds
    wanted = [(task, kind) for task in LEARNED for kind in (after, before)]
    print(f"tasks    {', '.join(LEARNED)}: reading {settings.data}", flush=True)
    with ExitStack() as opened:
        jobs: dict[tuple[str, str], FinetuningJob] = {}
        for number, (task, kind) in enumerate(wanted, start=1):
            encoder = trained if kind == after else first
            job_settings = finetune_settings(settings, task, encoder, width)
            job = opened.enter_context(opened_job(job_settings, storage, kind))
            job.title = f"{number} of {len(wanted)} {task} {kind}"
            jobs[task, kind] = job
        left = [job for job in jobs.values() if not job.folder.summary.exists()]
        if left and not train_and_register(left, write_results):
            return False
        results = [report.compared(jobs[task, before], jobs[task, after]) for task in LEARNED]
    asked = {task.removeprefix("docs_"): jobs[task, after] for task in LEARNED}
    write_questions(questions_about(asked), folder)
    report.write_report(results, folder, training)
    return True


def finetune_settings(
    settings: DemoSettings, task: str, encoder: Path, width: int
) -> "TaskRunSettings":
    """The settings of one of the fine-tuning runs, of an encoder so wide."""
    from bert_core.settings import FinetuningOptimizerSettings, rate_for
    from bert_core.tasks.catalog import TASKS
    from workflows.finetuning.settings import settings_class

    options = TASKS[task].model_copy(update={"max_examples": settings.learning.examples})
    return settings_class(task)(
        data=settings.data,
        model=str(encoder),
        storage=settings.storage,
        fresh=settings.fresh,
        options=options,
        epochs=settings.learning.epochs,
        batch_size=settings.learning.batch_size,
        optimizer=FinetuningOptimizerSettings(peak_learning_rate=rate_for(width)),
        checkpoint=CheckpointSettings(every_steps=250, keep=1),
    )


if __name__ == "__main__":
    sys.exit(main())

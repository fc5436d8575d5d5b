"""The settings of an audit: those of its fine-tuning runs, and what becomes of its suspects."""

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, create_model, model_validator

from bert_core.command_help import Example, Guide
from bert_core.errors import NoSuchSplitError, UserError
from bert_core.tasks.classification import Classification
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task, has_answer
from workflows.finetuning.data import located
from workflows.finetuning.settings import (
    DIVISION_FIELDS,
    FinetuneTrackingSettings,
    TaskRunSettings,
    settings_class,
)
from workflows.settings import validated
from workflows.sweeps.settings import NO_AXIS, TuneSettings, tune_settings_class
from workflows.training.run_settings import CheckpointSettings

EXPERIMENT = "audits"
FOLDS = 5
HELD_OUT = 0.1
"""The share held out as dev, where models are retrained and no dev file has answers."""


SPLIT_FILES = ("train", "dev", "test")


class AuditSettings(TaskRunSettings):
    """The settings of an audit, whatever its task."""

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "the label errors of a table, ranked",
                "--task classification --data topics --model models:/bert/1"
                " --options.label_column topic",
            ),
            Example(
                "tags of words, without training the two models that are compared",
                "--task ner --data ner --model models:/bert/1 --no-retrain",
            ),
            Example(
                "more folds, each model learning from nine tenths",
                "--task mrpc --data glue/MRPC --model models:/bert/1 --folds 10",
            ),
        ),
        common=(
            "task",
            "data",
            "model",
            "folds",
            "seeds",
            "retrain",
            "epochs",
            "batch_size",
            "optimizer.peak_learning_rate",
            "options.max_length",
        ),
        refused=("fold", "exclude", "tracking.register_as", "decisions", *SPLIT_FILES),
    )

    retrain: bool = Field(
        default=True,
        description="train on all training examples and on those that are not suspects, and compare"
        f" on dev; without one that has answers {HELD_OUT:.0%} are held out before the folds are"
        " made",
    )
    seeds: int = Field(
        default=1,
        ge=1,
        description="models of each fold, whose probabilities are averaged, and of those that are"
        " retrained; seeds start at --seed",
    )
    at_once: int | None = Field(
        default=None,
        ge=1,
        description="runs at once, at most; by default as many as fit the cluster at the start",
    )
    gpus_per_trial: float = Field(default=1.0, gt=0, description="GPUs of a run, or a share of one")

    @model_validator(mode="before")
    @classmethod
    def _data_is_one_place(cls, values: Any) -> Any:  # noqa: ANN401 - what pydantic hands over
        for name in SPLIT_FILES:
            if values.get(name) is not None:
                what = "an audit takes one file, or a folder of files"
                raise UserError(what, f"--{name}", "make a folder of the files, and give --data")
        return values


@cache
def audit_settings_class(task: str, approach: str = "finetune") -> type[AuditSettings]:
    """The settings of an audit of a task by an approach; raises as `settings_class` does."""
    of_run = settings_class(task, approach)
    tracking = FinetuneTrackingSettings(experiment=EXPERIMENT)
    folds = Field(
        default=FOLDS,
        ge=2,
        description="models to train, each on all folds but one, which it judges",
    )
    settings: Any = create_model(
        f"Audit_{of_run.__name__}",
        __base__=(of_run, AuditSettings),
        __doc__="Finds label errors of training data: labels that models trained on the rest"
        f" contradict.\n\nThe options are those of --task {task}.",
        folds=(int, folds),
        tracking=(FinetuneTrackingSettings, Field(default=tracking)),
        checkpoint=(CheckpointSettings, Field(default=CheckpointSettings(keep=1))),
    )
    return settings


OWN_FIELDS = {"retrain", "seeds", "at_once", "gpus_per_trial"}


def has_labels(task: Task) -> bool:
    """Whether its answers are labels, several labels, or tags, which an audit can judge."""
    if isinstance(task, Classification):
        return task.kind != "regression"
    return isinstance(task, Tagging)


def refuse_contradictions(settings: AuditSettings) -> None:
    """Raises `UserError` for a task that cannot be audited, and for options that say nothing."""
    if not has_labels(settings.options):
        what = "an audit judges labels and tags, and this task has other answers"
        remedy = "give a task of labels, such as --task classification"
        raise UserError(what, f"--task {settings.task}", remedy)
    given = {
        "--fold": settings.fold is not None,
        "--exclude": settings.exclude is not None,
        "--tracking.register_as": settings.tracking.asked_name is not None,
        **{f"--decisions.{name}": True for name in settings.decisions.changed},
    }
    for name in (name for name, is_given in given.items() if is_given):
        what = "an audit judges every training example, and registers nothing"
        raise UserError(what, name, "leave it out; finetune.py takes it")


def with_dev(settings: AuditSettings) -> AuditSettings:
    """The settings with a part held out as dev where they need one and the data have none."""
    if not settings.retrain or settings.split is not None or _has_dev(settings):
        return settings
    return settings.model_copy(update={"split": HELD_OUT})


def _has_dev(settings: AuditSettings) -> bool:
    data = settings.source("train")
    if "://" not in data and Path(data).is_file():
        return False
    try:
        return any(map(has_answer, settings.options.examples(located(data), "dev")))
    except NoSuchSplitError:
        return False


def sweep_settings(settings: AuditSettings) -> TuneSettings:
    """The sweep over the folds, with no axis."""
    values = settings.model_dump(mode="json", exclude={"retrain"}) | {"axis": [NO_AXIS]}
    kind = tune_settings_class(settings.task, settings.approach)
    return validated(kind, values, "the command line")


def retraining_settings(settings: AuditSettings, exclude: Path | None) -> TaskRunSettings:
    """One ordinary run, on all training examples or without those that a file names."""
    values = settings.model_dump(mode="json", exclude=OWN_FIELDS | {"name"})
    values |= {"folds": None, "exclude": None if exclude is None else str(exclude)}
    if settings.split is None:  # of what divided the folds this run has none
        values = {name: value for name, value in values.items() if name not in DIVISION_FIELDS}
    kind = settings_class(settings.task, settings.approach)
    return validated(kind, values, "the command line")

"""Settings of an evaluation, each with its unit, and task options given on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from bert_core.errors import UserError, nearest
from workflows.runs.mlflow_run import ReportFolder
from workflows.settings import CommandLineSettings, default_storage, split_list

if TYPE_CHECKING:
    from bert_core.tasks.task import Task

OF_ONE_MODEL = (
    *("model", "task", "options", "split", "output", "compare", "slice_by", "checks"),
    *("storage", "tracking_uri"),
)
"""The settings that say nothing to a suite."""


class EvaluateSettings(CommandLineSettings):
    """Measures a fine-tuned model: metrics with intervals, slices, calibration, mistakes.

    Or with --suite glue a folder of models, one for each task of GLUE: the table of Devlin et al.
    """

    model: str = Field(
        default="",
        description="a model folder, models:/NAME@ALIAS, or the name of a run; needed, unless there"
        " is a suite",
    )
    data: str = Field(
        description="file of examples, folder with the files of the splits, or"
        " hf://OWNER/NAME[:CONFIG]; of a suite, the folder of its tasks' folders (CoLA, MRPC, … as"
        " GLUE's download has them)"
    )
    suite: Literal["glue"] | None = Field(
        default=None,
        description="glue measures the models of --model_root on the tasks of GLUE; --suite"
        " table7 --help and --suite pictures --help say what those do with an encoder",
    )
    model_root: Path | None = Field(
        default=None,
        description="of a suite, the folder of fine-tuned model folders, or of their runs",
    )
    task: str | None = Field(
        default=None,
        description="the task of a model that names none, such as one of transformers; a model of"
        " another task is refused; by default any is taken",
    )
    options: dict[str, str] = Field(
        default={},
        description="options of the model's task for this data, such as text_column=title; those of"
        " its training hold otherwise (python workflows/finetune.py --task TASK --help has them)",
    )
    split: str = Field(default="dev", description="which file of a folder: train, dev, test, …")
    output: Path | None = Field(
        default=None,
        description="file for a prediction for each example, .jsonl or .parquet; or for scorers:"
        " .json of answers by id (SQuAD), .conll of words, right tags and found tags",
    )
    report: ReportFolder | None = Field(
        default=None,
        description="folder for report.html, report.md, report.json, mistakes.md and figures; with"
        " --suite glue for glue.html, glue.md and glue.json",
    )
    compare: str | None = Field(
        default=None, description="a second model, or a file of its predictions (--output of it)"
    )
    slice_by: list[str] = Field(
        default=[], description="columns of the data by whose values metrics are sliced"
    )
    checks: Path | None = Field(
        default=None, description="YAML file of behavioural checks, see docs/behavioural_checks.md"
    )
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples behind each 95 % interval"
    )
    seed: int = Field(default=0, ge=0, description="decides the bootstrap samples")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")
    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and of the MLflow store, for models that are named; by default"
        " ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )

    @model_validator(mode="after")
    def _one_model_or_a_suite(self) -> Self:
        if self.suite is None:
            if self.model_root is not None:
                raise UserError("models without a suite", "--model_root", "give --suite glue")
            if not self.model:
                raise UserError("no model", "--model", "give one, or --suite glue --model_root DIR")
            return self
        if self.model_root is None:
            raise UserError("no models", f"--suite {self.suite}", "give --model_root, their folder")
        for name in OF_ONE_MODEL:
            if name in self.model_fields_set:
                raise UserError(
                    f"--{name} is for one model", f"--suite {self.suite}", "leave it out"
                )
        return self


def with_options(task: "Task", options: Mapping[str, str]) -> "Task":
    """Returns the task with these options, given as text; commas separate several values.

    Options let a task read a table of other columns. Raises `UserError` for an unknown option, a
    refused value, and for what would change the answers themselves (labels, kind).
    """
    from bert_core.tasks.task import refuse_ignored_options  # loads torch

    known = type(task).model_fields
    values: dict[str, Any] = task.model_dump()
    for name, text in options.items():
        if name not in known:
            near = nearest(name, known)
            raise UserError(f"unknown option{near}", f"--options {name}", ", ".join(known))
        values[name] = split_list(text) if isinstance(values[name], list | tuple) else text
    try:
        changed = type(task).model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(message, f"--options {where}", "give another value") from error
    refuse_ignored_options(changed, options)
    if (changed.head, changed.labels, changed.problem_type) != (
        task.head,
        task.labels,
        task.problem_type,
    ):
        raise UserError(
            "these options change what the model answers",
            f"--options {' '.join(options)}",
            "change only how data is read",
        )
    return changed

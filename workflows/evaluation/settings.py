"""Settings of an evaluation, each with its unit, and task options given on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from bert_core.command_help import Example, Guide
from bert_core.errors import UserError, nearest, refusal
from workflows.runs.mlflow_run import ReportFolder
from workflows.settings import MODEL_PLACES, StoreSettings, split_list

if TYPE_CHECKING:
    from bert_core.tasks.task import Task

OF_ONE_MODEL = (
    *("model", "task", "options", "split", "output", "compare", "slice_by", "checks"),
    *("storage", "tracking_uri"),
)
"""The settings that say nothing to a suite."""


class EvaluateSettings(StoreSettings):
    """Measures a fine-tuned model: metrics with intervals, slices, calibration, mistakes.

    Or with --suite glue a folder of models, one for each task of GLUE: the table of Devlin et al.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "metrics of a registered model, with a report",
                "--model models:/mrpc/1 --data glue/MRPC --report report",
            ),
            Example(
                "compare two models on the same test file",
                "--model models:/mrpc/2 --compare models:/mrpc/1 --data test.tsv",
            ),
            Example(
                "the GLUE table of a folder of models",
                "--suite glue --data glue --model_root models",
            ),
        ),
        common=(
            "model",
            "data",
            "split",
            "report",
            "output",
            "compare",
            "slice_by",
            "checks",
            "options",
            "suite",
        ),
    )

    model: str = Field(
        default="",
        description=f"{MODEL_PLACES}; needed without --suite",
    )
    data: str = Field(
        description="file of examples, folder with the splits, or hf://OWNER/NAME[:CONFIG]; for"
        " --suite glue the folder of CoLA, MRPC, …"
    )
    suite: Literal["glue"] | None = Field(
        default=None,
        description="glue: the GLUE table of --model_root; also table7 and pictures, see --suite"
        " NAME --help",
    )
    model_root: Path | None = Field(
        default=None,
        description="for --suite glue: folder of fine-tuned model folders or runs",
    )
    task: str | None = Field(
        default=None,
        description="task of a model that records none, such as one of transformers",
    )
    options: dict[str, str] = Field(
        default={},
        description="options of the model's task for this data, such as text_column=title",
    )
    split: str = Field(default="dev", description="split of a folder to read: train, dev, test, …")
    output: Path | None = Field(
        default=None,
        description="file of predictions: .jsonl or .parquet, or for scorers .json (SQuAD) and"
        " .conll",
    )
    report: ReportFolder | None = Field(
        default=None,
        description="folder for the report (HTML, Markdown, JSON), mistakes and figures",
    )
    compare: str | None = Field(
        default=None, description="second model, or a file of its predictions"
    )
    slice_by: list[str] = Field(default=[], description="columns to slice the metrics by")
    checks: Path | None = Field(
        default=None, description="YAML file of behavioural checks (docs/behavioural_checks.md)"
    )
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples of each 95 % interval"
    )
    seed: int = Field(default=0, ge=0, description="seed of the bootstrap samples")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")

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


def with_options(task: "Task", options: Mapping[str, str], positions: int | None = None) -> "Task":
    """Returns the task with these options, given as text; commas separate several values.

    Options let a task read a table of other columns. Raises `UserError` for an unknown option, a
    refused value, rows longer than the model's `positions`, and for what would change the answers
    themselves (labels, kind).
    """
    from bert_core.tasks.task import refuse_ignored_options  # loads torch
    from workflows.finetuning.data import refuse_unknown_metric

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
        raise UserError(refusal(error), f"--options {where}", "give another value") from error
    refuse_ignored_options(changed, options)
    refuse_unknown_metric(changed, "--options metric=")
    if positions is not None and "max_length" in options and changed.max_length > positions:
        what = f"rows of {changed.max_length} tokens, the model has {positions} positions"
        raise UserError(what, "--options max_length", f"give max_length={positions}, or less")
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

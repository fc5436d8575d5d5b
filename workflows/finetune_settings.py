"""The settings of a fine-tuning run, each with its unit; the defaults are the paper's (A.3).

The options of the task stand in a section of their own, whose fields are those of the task.
"""

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.task import Task
from bert_core.training.settings import FinetuningOptimizerSettings
from workflows.run_settings import RunSettings, TrackingSettings
from workflows.settings import nearest


class DropoutSettings(BaseModel):
    """Dropout while fine-tuning; the paper keeps what it pre-trained with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on hidden states, and before the classifier"
    )
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout on attention probabilities"
    )


class FinetuneTrackingSettings(TrackingSettings):
    """Where MLflow is and what a run is called there."""

    experiment: str = Field(default="fine-tuning", description="MLflow experiment")
    register_as: str | None = Field(
        default=None,
        description="name under which the model is registered, also --register NAME; by default it"
        " is not",
    )


class FinetuneSettings(RunSettings):
    """Fine-tunes an encoder, any BERT model folder, on a task."""

    machine_fields = RunSettings.machine_fields | {"data", "model"}

    task: str = Field(default="classification", description=f"one of {', '.join(TASKS)}")
    data: str = Field(
        description="folder with the files of train and dev, as the task has them, or a data set of"
        " the Hugging Face Hub, hf://OWNER/NAME[:CONFIG]; docs:// for tasks made of documentation"
    )
    model: str = Field(
        description="encoder: a model folder, models:/NAME@ALIAS, or the name of an earlier run"
    )
    batch_size: int = Field(default=32, ge=1, description="examples per step, all workers")
    epochs: int = Field(default=3, ge=1, description="times that every example is seen")
    max_tokens: int = Field(
        default=4096,
        ge=8,
        description="tokens of one forward pass of a worker, at most; changes memory, not results",
    )
    dropout: DropoutSettings = Field(default_factory=DropoutSettings)
    optimizer: FinetuningOptimizerSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=FinetuningOptimizerSettings
    )
    tracking: FinetuneTrackingSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=FinetuneTrackingSettings
    )
    options: Task

    def recipe(self) -> dict[str, Any]:
        """What decides the weights that come out: a run may only go on under the same."""
        changeable = {"profile", "name", "storage", "fresh", "data", "model"}
        return self.model_dump(
            mode="json", exclude=changeable | {"tracking", "cluster", "checkpoint", "max_tokens"}
        )


@cache
def settings_class(task: str) -> type[FinetuneSettings]:
    """The settings of a fine-tuning run of this task, with its options.

    Raises `UserError` for a task that is not in TASKS.
    """
    if task not in TASKS:
        raise UserError(
            f"unknown task{nearest(task, list(TASKS))}",
            f"--task {task}",
            f"one of {', '.join(TASKS)}",
        )
    options = TASKS[task]
    described = f"options of the task {task}"
    return create_model(
        f"Finetune_{task}",
        __base__=FinetuneSettings,
        __doc__=f"{FinetuneSettings.__doc__}\n\nThe options are those of --task {task}.",
        task=(
            str,
            Field(default=task, description=FinetuneSettings.model_fields["task"].description),
        ),
        options=(type(options), Field(default=options, description=described)),
    )


def read_settings(values: dict[str, Any]) -> FinetuneSettings:
    """The settings of `model_dump`, as a worker gets them."""
    return settings_class(values["task"]).model_validate(values)

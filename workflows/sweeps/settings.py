"""The settings of a sweep: those of a fine-tuning run, and which of them vary.

Settings that are no axis apply to every trial.
"""

from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field, create_model

from bert_core.command_help import Example, Guide
from workflows.finetuning.settings import FinetuneTrackingSettings, TaskRunSettings, settings_class
from workflows.settings import validated
from workflows.sweeps.outcome import Point
from workflows.sweeps.search_space import PAPER_GRID, with_point
from workflows.training.run_settings import CheckpointSettings

EXPERIMENT = "sweeps"


class TuneSettings(TaskRunSettings):
    """The settings of a sweep, whatever its task."""

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "the paper's grid for MRPC, three seeds each",
                "--task mrpc --data glue/MRPC --model models:/bert/1 --seeds 3",
            ),
            Example(
                "values of your own",
                "--task mrpc --data glue/MRPC --model models:/bert/1"
                " --axis batch_size=16,32 epochs=2,4",
            ),
            Example(
                "20 points proposed by Optuna, poor trials ended early",
                "--task mrpc --data glue/MRPC --model models:/bert/1"
                " --axis optimizer.peak_learning_rate=log:1e-5..1e-4"
                " --search optuna --points 20 --stop_early",
            ),
        ),
        common=(
            "task",
            "data",
            "model",
            "axis",
            "search",
            "points",
            "seeds",
            "stop_early",
            "at_once",
            "tracking.register_as",
        ),
    )

    axis: tuple[str, ...] = Field(
        default=PAPER_GRID,
        min_length=1,
        description="FIELD=VALUES: choices (batch_size=16,32), or ranges for random and optuna"
        " (epochs=2..5, optimizer.peak_learning_rate=log:1e-5..1e-4)",
    )
    seeds: int = Field(default=1, ge=1, description="trials of each point; seeds start at --seed")
    search: Literal["grid", "random", "optuna"] = Field(
        default="grid",
        description="grid: every point; random: --points random ones; optuna: --points that Optuna"
        " proposes",
    )
    points: int | None = Field(
        default=None, ge=1, description="points to draw or propose, for random and optuna"
    )
    stop_early: bool = Field(
        default=False,
        description="stop trials that fall behind after an epoch (ASHA); not if epochs is an axis",
    )
    at_once: int | None = Field(
        default=None,
        ge=1,
        description="trials at once, at most; by default as many as fit the cluster at the start",
    )
    gpus_per_trial: float = Field(
        default=1.0, gt=0, description="GPUs of a trial, or a share of one"
    )

    def of_sweep(self) -> dict[str, Any]:
        """What identifies the sweep; with more seeds or points the same sweep continues."""
        return {"axis": sorted(self.axis), "search": self.search, "stop_early": self.stop_early}


SWEEP_FIELDS = frozenset(TuneSettings.model_fields.keys() - TaskRunSettings.model_fields.keys())
"""What a sweep has besides the settings of its trials."""


@cache
def tune_settings_class(task: str, approach: str = "finetune") -> type[TuneSettings]:
    """The settings of a sweep over a task by an approach; raises as `settings_class` does."""
    of_trial = settings_class(task, approach)
    tracking = FinetuneTrackingSettings(experiment=EXPERIMENT)
    settings: Any = create_model(
        f"Tune_{of_trial.__name__}",
        __base__=(of_trial, TuneSettings),
        __doc__="Searches the settings of fine-tuning on a task.\n\n"
        f"The options are those of --task {task}.",
        tracking=(FinetuneTrackingSettings, Field(default=tracking)),
        checkpoint=(CheckpointSettings, Field(default=CheckpointSettings(keep=1))),
    )
    return settings


def trial_settings(settings: TuneSettings, point: Point, seed: int) -> TaskRunSettings:
    """The settings of one trial: those of the sweep with the values of a point and a seed.

    Raises `UserError` for a value that its field refuses.
    """
    of_trial = settings_class(settings.task, settings.approach)
    values: dict[str, Any] = settings.model_dump(mode="json", exclude={*SWEEP_FIELDS, "name"})
    named = ", ".join(f"{name}={value}" for name, value in point.items())
    return validated(of_trial, with_point(values, point) | {"seed": seed}, f"--axis {named}")

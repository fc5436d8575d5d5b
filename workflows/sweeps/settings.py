"""The settings of a sweep: those of a fine-tuning run, and which of them vary.

Settings that are no axis apply to every trial.
"""

from functools import cache
from typing import Any, Literal

from pydantic import Field, create_model

from workflows.finetuning.settings import FinetuneTrackingSettings, TaskRunSettings, settings_class
from workflows.settings import validated
from workflows.sweeps.outcome import Point
from workflows.sweeps.search_space import PAPER_GRID, with_point
from workflows.training.run_settings import CheckpointSettings

EXPERIMENT = "sweeps"


class TuneSettings(TaskRunSettings):
    """The settings of a sweep, whatever its task."""

    axis: tuple[str, ...] = Field(
        default=PAPER_GRID,
        min_length=1,
        description="FIELD=VALUES, several: choices (batch_size=16,32), or with --search random and"
        " optuna ranges (optimizer.peak_learning_rate=log:1e-5..1e-4); by default the paper's grid",
    )
    seeds: int = Field(
        default=1, ge=1, description="trials of each point, with seeds from --seed on"
    )
    search: Literal["grid", "random", "optuna"] = Field(
        default="grid",
        description="every point, or as many as --points says: drawn at random, or proposed by"
        " Optuna from what the earlier ones reached",
    )
    points: int | None = Field(
        default=None, ge=1, description="points to draw or propose, with --search random and optuna"
    )
    stop_early: bool = Field(
        default=False,
        description="end trials that are behind after an epoch (ASHA); not where epochs is an axis:"
        " schedules of other lengths are not to be compared at equal steps",
    )
    at_once: int | None = Field(
        default=None,
        ge=1,
        description="trials that run at once, at most; by default as many as the cluster has room"
        " for when the sweep begins (say it for a cluster that grows)",
    )
    gpus_per_trial: float = Field(
        default=1.0, gt=0, description="GPUs of a trial, or a share of one, where a GPU is used"
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
        __doc__=f"Sweeps over settings of a task.\n\n{of_trial.__doc__}",
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

"""The settings of a sweep: those of a fine-tuning run, and its axes, which vary.

An axis is read from `FIELD=VALUES`. `batch_size=16,32` are choices,
`optimizer.peak_learning_rate=1e-5..1e-4` is a range, and with `log:` before it one over logarithms.
Values have the type of the field. Points come from a grid, at random, or from Optuna. Settings that
are no axis apply to every trial.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import (
    BaseModel,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from bert_core.command_help import Example, Guide
from bert_core.errors import UserError, nearest, require
from workflows.finetuning.settings import TaskRunSettings, settings_class
from workflows.settings import field_names, given_names, validated
from workflows.sweeps.outcome import Point
from workflows.training.run_settings import (
    REGISTER,
    CheckpointSettings,
    ExperimentName,
    ModelName,
    TrackingSettings,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

PAPER_GRID = (
    "batch_size=16,32",
    "optimizer.peak_learning_rate=5e-5,3e-5,2e-5",
    "epochs=2,3,4",
)
"""Devlin et al. 2018, A.3: the 18 settings that work well across all tasks."""

_LOG = "log:"
_RANGE = ".."


@dataclass(frozen=True)
class Choice:
    """A field that takes each of some values."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A field that takes any value from `low` to `high`, both included."""

    field: str
    low: float
    high: float
    is_log: bool
    is_integer: bool


Axis = Choice | Range


def read_axis(text: str, settings: type[BaseModel]) -> Axis:
    """Reads `FIELD=VALUES`; raises `UserError` for an unknown field or a wrong value."""
    field, equals, values_text = text.partition("=")
    if not equals or not values_text.strip():
        raise UserError("an axis without values", f"--axis {text}", "write FIELD=16,32")
    kind = _type_of(field, settings)
    if _RANGE in values_text and not {str, Path} & {kind, *get_args(kind)}:  # ../folder is none
        return _range(field, values_text, kind)
    values = tuple(_value(part.strip(), field, kind) for part in values_text.split(","))
    if len(set(map(str, values))) < len(values):
        raise UserError("a value given twice", f"--axis {text}", "give each once")
    return Choice(field, values)


def with_point(values: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Nested settings, those of the point put in their places."""
    changed = dict(values)
    for name, value in point.items():
        head, dot, rest = name.partition(".")
        changed[head] = with_point(changed.get(head) or {}, {rest: value}) if dot else value
    return changed


def _type_of(field: str, settings: type[BaseModel]) -> Any:  # noqa: ANN401 - an annotation
    known = field_names(settings)
    if field not in known:
        near = nearest(field, known)
        raise UserError(f"an axis that is no setting{near}", f"--axis {field}", "see --help")
    *sections, name = field.split(".")
    model = settings
    for section in sections:
        annotation = model.model_fields[section].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return model.model_fields[name].annotation


def _value(text: str, field: str, kind: Any) -> Any:  # noqa: ANN401
    try:
        return TypeAdapter(kind).validate_python(None if text == "null" else text)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise UserError(
            f"{text!r} is no value of it: {message}", f"--axis {field}", "see --help"
        ) from error


def _range(field: str, text: str, kind: Any) -> Range:  # noqa: ANN401
    is_log = text.startswith(_LOG)
    low, _, high = text.removeprefix(_LOG).partition(_RANGE)
    kinds = {kind, *get_args(kind)}
    if not kinds & {int, float}:
        raise UserError("a range of what is no number", f"--axis {field}", "give values")
    first, last = _value(low, field, kind), _value(high, field, kind)
    if not first < last or (is_log and first <= 0):
        remedy = "write FIELD=LOW..HIGH, the smaller number first; after log: both above 0"
        raise UserError("a range without numbers in it", f"--axis {field}={text}", remedy)
    return Range(field, first, last, is_log, is_integer=float not in kinds)


SIGNIFICANT_DIGITS = 3
"""Of drawn and proposed numbers, so that they are readable and read back exactly."""


def grid(axes: Sequence[Axis]) -> Iterator[Point]:
    """Every combination of the choices; raises `UserError` where an axis is a range."""
    for axis in axes:
        if isinstance(axis, Range):
            raise UserError(
                "a grid of a range, which has no end",
                f"--axis {axis.field}",
                "give values (FIELD=1e-5,3e-5), or draw from it with --search random or optuna",
            )
    choices = [axis for axis in axes if isinstance(axis, Choice)]
    names = [axis.field for axis in choices]
    for values in product(*(axis.values for axis in choices)):
        yield dict(zip(names, values, strict=True))


def drawn_points(axes: Sequence[Axis], count: int, seed: int) -> list[Point]:
    """Draws `count` different points; a larger count begins with the same points.

    Raises `UserError` where the axes have fewer points.
    """
    random = np.random.default_rng(seed)
    points: list[Point] = []
    tries = 0
    while len(points) < count:
        point = {axis.field: _drawn(axis, random) for axis in axes}
        if point not in points:
            points.append(point)
        tries += 1
        if tries > 100 * count:
            remedy = f"give --points {len(points)}"
            if all(isinstance(axis, Choice) for axis in axes):
                remedy += ", or try all with --search grid and without --points"
            raise UserError(
                f"no more than {len(points)} different points in these axes",
                f"--points {count}",
                remedy,
            )
    return points


def _drawn(axis: Axis, random: np.random.Generator) -> Any:  # noqa: ANN401 - a setting's value
    if isinstance(axis, Choice):
        return axis.values[int(random.integers(len(axis.values)))]
    if axis.is_integer and not axis.is_log:
        return int(random.integers(int(axis.low), int(axis.high) + 1))
    low, high = map(math.log, (axis.low, axis.high)) if axis.is_log else (axis.low, axis.high)
    value = float(random.uniform(low, high))
    return readable(math.exp(value) if axis.is_log else value, axis)


def readable(value: float, axis: Range) -> float | int:
    """The number with a few digits, within the range."""
    if axis.is_integer:
        return round(value)
    return min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), axis.low), axis.high)


class Proposals:
    """Optuna's proposals (tree-structured Parzen estimators), given earlier scores."""

    def __init__(self, axes: Sequence[Axis], seed: int, num_earlier: int) -> None:
        require("Optuna is not installed", "optuna", where="--search optuna", extra="optuna")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # A sampler of the same seed would propose again what it did before the sweep was killed.
        sampler = optuna.samplers.TPESampler(seed=seed + num_earlier)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._axes = {axis.field: axis for axis in axes}
        self._space = {axis.field: _distribution(axis) for axis in axes}
        self._asked: dict[str, Any] = {}

    def learn(self, found: Iterable[tuple[Point, float]]) -> None:
        """Records the scores of points."""
        from optuna.trial import create_trial

        for point, score in found:
            asked = self._asked.pop(_key(point), None)
            if asked is None:
                params = {name: self._as_optuna(name, value) for name, value in point.items()}
                trial = create_trial(params=params, distributions=self._space, value=score)
                self._study.add_trial(trial)
            else:
                self._study.tell(asked, score)

    def propose(self) -> Point:
        """The next point."""
        asked = self._study.ask(self._space)
        point = {name: self._as_value(name, value) for name, value in asked.params.items()}
        self._asked[_key(point)] = asked
        return point

    def _as_value(self, name: str, value: Any) -> Any:  # noqa: ANN401
        axis = self._axes[name]
        return axis.values[value] if isinstance(axis, Choice) else readable(value, axis)

    def _as_optuna(self, name: str, value: Any) -> Any:  # noqa: ANN401
        axis = self._axes[name]
        return axis.values.index(value) if isinstance(axis, Choice) else value


def _key(point: Point) -> str:
    return repr(sorted(point.items()))


def _distribution(axis: Axis) -> "BaseDistribution":
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(axis, Choice):  # Optuna knows a choice by its place: values may be anything
        return CategoricalDistribution(tuple(range(len(axis.values))))
    if axis.is_integer:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.is_log)
    return FloatDistribution(axis.low, axis.high, log=axis.is_log)


EXPERIMENT = "sweeps"
NO_AXIS = "none"


class SweepTrackingSettings(TrackingSettings):
    """Where MLflow is and what a sweep is called there."""

    experiment: ExperimentName = Field(default=EXPERIMENT, description="MLflow experiment")
    register_as: ModelName | None = Field(
        default=None, description="name to register the winner under; by default the task's"
    )


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
        aliases=REGISTER,
        refused=("train", "dev", "test"),
    )

    axis: tuple[str, ...] = Field(
        default=PAPER_GRID,
        min_length=1,
        description="FIELD=VALUES: choices (batch_size=16,32), or ranges for random and optuna"
        " (epochs=2..5, optimizer.peak_learning_rate=log:1e-5..1e-4); or none: the settings as"
        " they are, for --seeds and --folds; --folds alone means that",
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

    @model_validator(mode="before")
    @classmethod
    def _folds_alone_vary_nothing(cls, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("folds") is not None and "axis" not in given:
            return given | {"axis": [NO_AXIS]}
        return given

    @field_validator("axis")
    @classmethod
    def _none_is_no_axis(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return () if given == (NO_AXIS,) else given

    def of_sweep(self) -> dict[str, Any]:
        """What identifies the sweep; with more seeds or points the same sweep continues."""
        return {"axis": sorted(self.axis), "search": self.search, "stop_early": self.stop_early}


SWEEP_FIELDS = frozenset(TuneSettings.model_fields.keys() - TaskRunSettings.model_fields.keys())
"""What a sweep has besides the settings of its trials."""


@cache
def tune_settings_class(task: str, approach: str = "finetune") -> type[TuneSettings]:
    """The settings of a sweep over a task by an approach; raises as `settings_class` does."""
    of_trial = settings_class(task, approach)
    settings: Any = create_model(
        f"Tune_{of_trial.__name__}",
        __base__=(of_trial, TuneSettings),
        __doc__="Searches the settings of fine-tuning on a task.\n\n"
        f"The options are those of --task {task}.",
        tracking=(SweepTrackingSettings, Field(default=SweepTrackingSettings())),
        checkpoint=(CheckpointSettings, Field(default=CheckpointSettings(keep=1))),
    )
    return settings


def trial_settings(
    settings: TuneSettings, point: Point, seed: int, fold: int | None = None
) -> TaskRunSettings:
    """The settings of one trial: those of the sweep with the values of a point, a seed, a fold.

    Raises `UserError` for a value that its field refuses.
    """
    of_trial = settings_class(settings.task, settings.approach)
    values: dict[str, Any] = settings.model_dump(mode="json", exclude={*SWEEP_FIELDS, "name"})
    named = ", ".join(f"{name}={value}" for name, value in point.items())
    return validated(
        of_trial, with_point(values, point) | {"seed": seed, "fold": fold}, f"--axis {named}"
    )


def refuse_worker_counts(arguments: Sequence[str]) -> None:
    """Raises `UserError` for workers of one run, given for runs of one each; a profile has some."""
    for name in ("cluster.num_workers", "cluster.cpus_per_worker"):
        if name in given_names(arguments):
            remedy = "leave it out; its threads are --cluster.threads_per_worker"
            raise UserError("runs side by side have one worker each", f"--{name}", remedy)

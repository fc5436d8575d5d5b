"""Teacher and student side by side: scores on dev, latency of one text, and size."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.evaluation.intervals import Interval, bootstrap_intervals, compare
from bert_core.evaluation.outcomes import resampling_units
from bert_core.model_folder import weight_files
from bert_core.predictor import Predictor, load_predictor
from bert_core.tasks.metrics import readable_metric
from bert_core.tasks.task import Task
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.settings import FinetuneSettings
from workflows.finetuning.teacher import refuse_other_task
from workflows.model_location import locate_model, model_name
from workflows.reporting.render import aligned_lines

NUM_TEXTS = 50
"""Dev examples that latency is the median over; each model answers each of them in turn."""

MeasuredTitles = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class MeasuredModel:
    """A model on dev; `difference` is to the teacher, paired, None for the teacher itself."""

    model: str
    metric: str
    score: Interval
    difference: Interval | None
    p50_milliseconds: float
    megabytes: float

    @property
    def cells(self) -> MeasuredTitles:
        """The row of a table; see `titles`."""
        difference = "" if self.difference is None else self.difference.text("+.3f")
        latency, size = f"{self.p50_milliseconds:.1f}", f"{self.megabytes:.1f}"
        return self.model, self.score.text(".3f"), difference, latency, size


def titles(models: Sequence[MeasuredModel]) -> MeasuredTitles:
    """The head of the table."""
    metric = f"{readable_metric(models[0].metric)} on dev"
    return "", metric, "to the teacher", "one text, p50 ms", "MB"


def table_lines(models: Sequence[MeasuredModel]) -> list[str]:
    """The table as text; nothing of no models."""
    if not models:
        return []
    numeric = [False, False, False, True, True]
    return aligned_lines([titles(models), *(model.cells for model in models)], numeric)


def measure_models(
    job: FinetuningJob,
    student: Predictor,
    student_bytes: int,
    predictions: Sequence[Mapping[str, Any]],
) -> list[MeasuredModel]:
    """The teacher, the model of --compare, if there is one, and the student of this run.

    `predictions` are the student's for dev. Latency is that of this machine, alone in a request.
    """
    settings, teacher = job.settings, job.data.teacher
    assert isinstance(settings, FinetuneSettings) and teacher is not None
    names, predictors = ["teacher"], [load_predictor(teacher.path)]
    if settings.compare is not None:
        folder = compared_model(settings, job.storage.folder)
        names.append(model_name(folder))
        predictors.append(load_predictor(folder))
    sizes = [_bytes(each.folder) for each in predictors if each.folder is not None]
    examples, task = job.data.dev.examples, job.data.task
    answers = [
        each.predict_examples(examples, max_tokens=settings.max_tokens)[0] for each in predictors
    ]
    names.append(f"{job.folder.name}, distilled")
    predictors.append(student)
    drawn: dict[str, Any] = {"seed": settings.seed, "groups": resampling_units(examples)}
    found = []
    named = zip(
        names,
        [*answers, predictions],
        _latencies(predictors, examples[:NUM_TEXTS]),
        [*sizes, student_bytes],
        strict=True,
    )
    for name, predicted, seconds, size in named:
        difference = None
        if found:
            compared = compare(task, answers[0], predicted, examples, **drawn)
            difference = compared.metrics[task.criterion].difference
        intervals = bootstrap_intervals(task, predicted, examples, hurried=True, **drawn)
        score = intervals[task.criterion]
        found.append(
            MeasuredModel(name, task.criterion, score, difference, 1e3 * seconds, size / 1e6)
        )
    return found


def compared_model(settings: FinetuneSettings, storage: Path) -> Path:
    """The folder of --compare; raises `UserError` where there is none, or one without a task."""
    return locate_model(str(settings.compare), storage, settings.tracking.uri_of(storage))


def refuse_compared(settings: FinetuneSettings, task: Task, storage: Path) -> None:
    """Raises `UserError` for a model to compare that has another task."""
    found = load_predictor(compared_model(settings, storage)).task
    refuse_other_task(found, task, f"--compare {settings.compare}")


def _latencies(predictors: Sequence[Predictor], examples: Sequence[Any]) -> list[float]:
    """The median seconds of an answer to one example, the models taking turns."""
    seconds: list[list[float]] = [[] for _ in predictors]
    for example in (examples[0], *examples):  # the first is a warm-up
        for predictor, taken in zip(predictors, seconds, strict=True):
            begin = time.perf_counter()
            predictor.predict_examples([example])
            taken.append(time.perf_counter() - begin)
    return [statistics.median(taken[1:]) for taken in seconds]


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))

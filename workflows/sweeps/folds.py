"""Out-of-fold predictions: each example's, by the model that has not learned from its fold."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from safetensors.numpy import load_file

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.evaluation.intervals import NUM_RESAMPLES
from bert_core.evaluation.outcomes import prediction_records, write_predictions
from bert_core.strict_files import parse_json
from bert_core.tasks.task import FloatArray, Task
from workflows.evaluation.report import evaluation_report, write_report
from workflows.finetuning.data import TaskData
from workflows.finetuning.job import FinetuningJob
from workflows.runs.folder import RunFolder

if TYPE_CHECKING:
    from bert_core.training.checkpoint import CheckpointInfo

OUT_OF_FOLD = "out_of_fold"
"""The report among a sweep's artifacts, and with .jsonl the predictions, there and in each run."""
_FILE, _OUTPUTS = f"{OUT_OF_FOLD}.jsonl", f"{OUT_OF_FOLD}.safetensors"


def keep_predictions(folder: RunFolder, checkpoint: "CheckpointInfo") -> None:
    """Keeps what the best epoch predicted for its dev set, when the checkpoint is gone."""
    from workflows.finetuning.worker import BEST_PREDICTIONS, FOLD_OUTPUTS  # loads torch

    for name, file in ((FOLD_OUTPUTS, _OUTPUTS), (BEST_PREDICTIONS, _FILE)):
        if name in checkpoint.files:
            with atomic_write(folder.path / file) as beside:
                shutil.copyfile(checkpoint.files[name], beside)


def has_predictions(folder: RunFolder) -> bool:
    """Whether a run's predictions are kept."""
    return (folder.path / _FILE).is_file()


def kept_predictions(folder: RunFolder) -> list[dict[str, Any]]:
    """What `keep_predictions` kept, in the order of the examples of dev."""
    path = folder.path / _FILE
    with path.open("rb") as file:
        return [parse_json(line, str(path), allow_nan=True) for line in file]


def kept_outputs(folder: RunFolder) -> FloatArray:
    """What the head said at the places of a fold in the epoch of the lowest loss, [P, L].

    Raises `UserError` where an older version trained it, which kept no outputs.
    """
    path = folder.path / _OUTPUTS
    if not path.is_file():
        what = "a fold without its outputs, of an older version"
        raise UserError(what, str(path), "give --fresh to train the folds again")
    return load_file(path)["outputs"]


@dataclass(frozen=True)
class OutOfFold:
    """Examples with the predictions of models that have not seen them, and the fold of each."""

    task: Task
    examples: Sequence[Any]
    predictions: Sequence[dict[str, Any]]
    fold: Sequence[int]

    @property
    def metrics(self) -> dict[str, float]:
        """The task's metrics over all examples together."""
        return self.task.metrics(self.predictions, self.examples)

    def write(self, folder: Path, title: str) -> Path:
        """Writes the predictions and a report on them; returns the file of the predictions."""
        path = folder / _FILE
        records = prediction_records(self.task, self.predictions, self.examples)
        write_predictions(
            [{"fold": fold} | each for fold, each in zip(self.fold, records, strict=True)], path
        )
        report = evaluation_report(
            self.task,
            self.predictions,
            self.examples,
            title=f"{title}: every example out of its fold",
            slice_by=(),
            num_resamples=NUM_RESAMPLES,
            seed=0,
            hurried=True,
        )
        write_report(report, folder / OUT_OF_FOLD)
        return path


class FoldRun(Protocol):
    """A finished run whose dev set is a fold."""

    job: FinetuningJob
    fold: int | None


def out_of_fold(trials: Sequence[FoldRun]) -> OutOfFold:
    """The predictions of finished trials of one point, one for each fold, in their order."""
    found = []
    for trial in trials:
        assert trial.fold is not None
        found.append((trial.fold, trial.job.data, kept_predictions(trial.job.folder)))
    return _joined(found)


@dataclass(frozen=True)
class JudgedFold:
    """A fold, whose examples are `data.dev`, and what is said at its places, [P, L].

    Of several models, trained from different seeds, `outputs` have the mean of their probabilities.
    """

    number: int
    data: TaskData
    outputs: FloatArray

    @property
    def predictions(self) -> Sequence[dict[str, Any]]:
        """For each example of the fold."""
        dev = self.data.dev
        return self.data.task.decode(self.outputs, dev.rows, dev.examples)


def judged_folds(trials: Sequence[FoldRun]) -> list[JudgedFold]:
    """The folds of finished trials of one point, each judged by its epochs of the lowest loss.

    Of tasks with a loss of labels. Raises `UserError` as `kept_outputs` does.
    """
    by_fold: dict[int, list[FoldRun]] = defaultdict(list)
    for trial in trials:
        assert trial.fold is not None
        by_fold[trial.fold].append(trial)
    found = []
    for number, models in by_fold.items():
        data = models[0].job.data
        outputs = [kept_outputs(model.job.folder) for model in models]
        found.append(JudgedFold(number, data, mean_outputs(data.task, outputs)))
    return found


def mean_outputs(task: Task, outputs: Sequence[FloatArray]) -> FloatArray:
    """Logits [P, L] of the mean of the probabilities of several models' logits."""
    if len(outputs) == 1:
        return outputs[0]
    logits = np.stack(outputs).astype(np.float64)  # [models, P, L]
    if task.problem_type == "multi_label_classification":
        has = np.logaddexp.reduce(-np.logaddexp(0, -logits))
        mean = has - np.logaddexp.reduce(-np.logaddexp(0, logits))
    else:
        total = np.logaddexp.reduce(logits, axis=2, keepdims=True)
        mean = np.logaddexp.reduce(logits - total)
    return mean.astype(outputs[0].dtype)


def probable_out_of_fold(folds: Sequence[JudgedFold]) -> OutOfFold:
    """What is most probable of every example by models that have not seen it."""
    return _joined([(each.number, each.data, each.predictions) for each in folds])


def _joined(folds: Sequence[tuple[int, TaskData, Sequence[dict[str, Any]]]]) -> OutOfFold:
    examples, joined, numbers = [], [], []
    for number, data, found in folds:
        assert len(found) == len(data.dev.examples)
        examples += data.dev.examples
        joined += found
        numbers += [number] * len(found)
    return OutOfFold(folds[0][1].task, examples, joined, numbers)

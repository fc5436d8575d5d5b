"""Out-of-fold predictions: each example's, by the model that has not learned from its fold."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.numpy import load_file

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.evaluation.intervals import NUM_RESAMPLES
from bert_core.evaluation.outcomes import prediction_records, write_predictions
from bert_core.strict_files import parse_json
from bert_core.tasks.task import FloatArray, Task
from workflows.evaluation.report import evaluation_report, write_report
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
    return _joined(trials, [kept_predictions(trial.job.folder) for trial in trials])


def probable_out_of_fold(trials: Sequence[FoldRun]) -> OutOfFold:
    """As `out_of_fold`, of each fold's epoch of the lowest loss; of tasks with a loss of labels.

    Raises `UserError` as `kept_outputs` does.
    """
    predictions = []
    for trial in trials:
        data = trial.job.data
        outputs = kept_outputs(trial.job.folder)
        predictions.append(data.task.decode(outputs, data.dev.rows, data.dev.examples))
    return _joined(trials, predictions)


def _joined(
    trials: Sequence[FoldRun], predictions: Sequence[Sequence[dict[str, Any]]]
) -> OutOfFold:
    examples, joined, folds = [], [], []
    for trial, found in zip(trials, predictions, strict=True):
        assert trial.fold is not None
        dev = trial.job.data.dev.examples
        assert len(found) == len(dev)
        examples += dev
        joined += found
        folds += [trial.fold] * len(found)
    return OutOfFold(trials[0].job.data.task, examples, joined, folds)

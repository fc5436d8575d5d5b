"""What a fine-tuning run shows of its best epoch: the report on dev, for MLflow.

In: the last checkpoint, which holds the best epoch's predictions. Out: `artifacts/dev/`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from bert_core.evaluation.intervals import NUM_RESAMPLES
from bert_core.training.checkpoint import CheckpointInfo
from workflows.evaluation.report import evaluation_report, write_report
from workflows.finetuning.report import best_predictions
from workflows.runs.tracker import ARTIFACTS_NAME

if TYPE_CHECKING:
    from workflows.finetuning.job import FinetuningJob

FOLDER = "dev"


def write_dev_report(job: "FinetuningJob", checkpoint: CheckpointInfo) -> None:
    """Writes figures with intervals, pictures and the worst mistakes, for MLflow to take."""
    predictions, dev = best_predictions(checkpoint), job.data.dev
    epoch = checkpoint.extra["notes"]["best"]["epoch"]
    report = evaluation_report(
        job.data.task,
        predictions,
        dev.examples,
        title=f"{job.folder.name}: dev after epoch {epoch}",
        slice_by=(),
        num_resamples=NUM_RESAMPLES,
        seed=job.settings.seed,
        hurried=True,
    )
    report = replace(report, tally=dev.rows.tally)
    write_report(report, job.folder.path / ARTIFACTS_NAME / FOLDER)

"""The fine-tuning run as it goes on every worker: a task's rows, its loss, its dev metrics."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert_core.disk import written_whole
from bert_core.errors import UserError
from bert_core.features.tagger import FeatureTagger
from bert_core.flops import training_flops
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder
from bert_core.predictor import compute_all_outputs, layout_for
from bert_core.tasks.batches import TaskBatchSource
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import add_task_head, task_loss
from bert_core.training.loop import ComputeLoss, StepBatches, StepResult, TrainingState
from bert_core.training.optimization import create_optimizer, linear_schedule
from workflows.clusters.workers import Worker
from workflows.finetuning.data import TaskData, read_task_data
from workflows.finetuning.settings import TaskRunSettings, read_settings
from workflows.remote_run import RemoteRun
from workflows.training.run import TrainingRun

BEST_WEIGHTS, BEST_PREDICTIONS = "best.safetensors", "best_predictions.jsonl"
"""What the best epoch so far leaves in the run folder, and in each checkpoint."""


def open_finetuning(
    config: dict[str, Any], worker: Worker, folder: Path, remote: RemoteRun | None
) -> "FinetuningRun":
    """The run of a job (`OpenRun`).

    `config` holds `settings` and `encoder`, with paths as found by the driver, and `data_sha256`;
    and `task_data` where the data have been read for several runs together.
    """
    settings = read_settings(config["settings"])
    encoder, data = Path(config["encoder"]), config.get("task_data")
    run = FinetuningRun(settings, worker, folder, encoder, remote, data)
    refuse_other_data(run, config)
    return run


def refuse_other_data(run: "FinetuningRun", config: dict[str, Any]) -> None:
    """Raises `UserError` where a worker has read other data than the driver."""
    if run.data_hash != config["data_sha256"]:
        raise UserError(
            "the data changed while the run was starting", run.settings.data_name, "repeat"
        )


class FinetuningRun(TrainingRun):
    """What one worker holds while it fine-tunes."""

    kept_files = (BEST_WEIGHTS, BEST_PREDICTIONS)

    def __init__(
        self,
        settings: TaskRunSettings,
        worker: Worker,
        folder: Path,
        encoder: Path,
        remote: RemoteRun | None = None,
        data: TaskData | None = None,
    ) -> None:
        """Reads the encoder and, where no `data` are given, the data."""
        self.settings, self.worker = settings, worker
        self.out_of_memory_remedy = (
            f"lower --max_tokens from {settings.max_tokens}: the result stays the same"
        )
        torch.manual_seed(settings.seed)  # before the head is drawn
        self.config, self.model, tokenizer = load_model_folder(
            encoder, changes=settings.encoder_changes()
        )
        data = data or read_task_data(settings, tokenizer)
        self.task, self.dev, self.data_hash = data.task, data.dev, data.sha256
        self.dev_rows = self.rows_of("dev", data.dev.rows)
        self.source = TaskBatchSource(
            self.rows_of("train", data.train.rows),
            batch_size=settings.batch_size,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            layout=layout_for(
                self.config,
                worker.device,
                None if settings.precision == "float32" else torch.bfloat16,
                training=True,
            ),
        )
        self.total_steps = settings.epochs * self.source.steps_per_epoch
        super().__init__(settings, worker, folder, remote)

    def rows_of(self, split: str, rows: EncodedRows) -> EncodedRows:
        """The rows whose batches the model reads."""
        del split
        return rows

    def fresh_state(self) -> TrainingState:
        """The encoder of the folder, and a head drawn from the seed unless the folder has one."""
        add_task_head(self.model, self.task)
        model = self.model.to(self.worker.device)
        return TrainingState(model, create_optimizer(model, self.settings.optimizer))

    def batches(self, step: int) -> Iterator[StepBatches]:
        """The global batches from this step on, epoch after epoch."""
        return self.source.steps(step, self.worker.rank, self.worker.world_size)

    def compute_loss(self) -> ComputeLoss:
        """The task's loss."""
        return partial(task_loss, self.task)

    def learning_rate(self, step: int) -> float:
        """Linear warm-up over a share of the run, then linear decay."""
        optimizer = self.settings.optimizer
        return optimizer.peak_learning_rate * linear_schedule(
            step,
            total_steps=self.total_steps,
            warmup_steps=round(optimizer.warmup_share * self.total_steps),
        )

    def step_metrics(self, result: StepResult) -> dict[str, float]:
        """Loss, the share of labels that were right, learning rate, gradient norm."""
        _, correct, count = result.sums.tolist()
        metrics = {
            "train/loss": float(result.loss),
            "train/learning_rate": result.learning_rate,
            "train/gradient_norm": float(result.gradient_norm),
        }
        if self.task.problem_type != "regression":
            metrics["train/accuracy"] = correct / max(count, 1)
        return metrics

    def step_flops(self, result: StepResult) -> float:
        """Encoder and pooler, forward and backward; the head is too small to count.

        A head that scores spans is taken to read all tokens: it reads those of the passage.
        """
        num_tokens, num_labels = int(result.num_real_tokens), int(result.sums[2])
        return training_flops(
            self.config,
            num_tokens=num_tokens,
            sum_of_squared_lengths=result.sum_of_squared_lengths,
            num_predictions=0,
            num_rows=num_labels if self.task.head.pooled else 0,
            num_read=num_tokens if self.task.head.name == "span" else num_labels,
        )

    def evaluation_is_due(self, step: int) -> bool:
        """At the end of each epoch."""
        return step % self.source.steps_per_epoch == 0

    def evaluate(self, step: int) -> Mapping[str, float]:
        """The task's metrics on dev; the best epoch's weights and predictions are kept."""
        assert isinstance(self.state.model, Bert | FeatureTagger)
        outputs, loss = compute_all_outputs(
            self.task,
            self.state.model,
            self.dev_rows,
            device=self.worker.device,
            max_tokens=self.settings.max_tokens,
            autocast_dtype=self.dtype,
        )
        if self.worker.rank:
            return {}
        predictions = self.task.decode(outputs, self.dev.rows, self.dev.examples)
        metrics = self.task.metrics(predictions, self.dev.examples)
        epoch = step // self.source.steps_per_epoch
        figures = {"dev/loss": loss / max(int(self.dev.rows.label_counts.sum()), 1)}
        figures |= {f"dev/{name}": value for name, value in metrics.items()}
        self._keep_the_best(epoch, metrics[self.task.criterion], figures, predictions)
        return figures | {"dev/epoch": float(epoch)}

    def _keep_the_best(
        self,
        epoch: int,
        score: float,
        figures: dict[str, float],
        predictions: Sequence[Mapping[str, Any]],
    ) -> None:
        best = self.notes.get("best")
        if best is None or score > best["score"] or math.isnan(best["score"]):
            self.notes["best"] = {"epoch": epoch, "score": score, "figures": figures}
            weights = {
                name: each.detach().cpu() for name, each in self.state.model.state_dict().items()
            }
            _replace(self.folder.path / BEST_WEIGHTS, partial(save_file, weights))
            lines = "".join(json.dumps(each) + "\n" for each in predictions)
            _replace(self.folder.path / BEST_PREDICTIONS, lambda path: path.write_text(lines))
        best = self.notes["best"]
        self._publish({"best_epoch": f"dev {self.task.criterion} {best['score']:.3f}"})


def _replace(path: Path, write: Any) -> None:  # noqa: ANN401 - a function of the path
    """Writes a file beside its name and renames it."""
    with written_whole(path) as beside:
        write(beside)

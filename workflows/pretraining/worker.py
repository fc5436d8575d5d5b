"""The pre-training run as it goes on every worker: shards, the losses, held-out rows."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_core.flops import training_flops
from bert_core.model.bert import Bert
from bert_core.pretraining import PretrainingBatch, compute_loss
from bert_core.text.rows.batches import BatchSource, StepBatches
from bert_core.text.rows.masking import Vocabulary
from bert_core.text.shards import TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.compilation import compiled
from bert_core.training.evaluation import PretrainingEvaluation, evaluate_pretraining
from bert_core.training.loop import ComputeLoss, StepResult, TrainingState
from bert_core.training.optimization import create_optimizer, linear_schedule
from workflows.cluster import Worker
from workflows.pretraining.metrics import metric_name, step_metrics
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.setup import lower_micro_batch
from workflows.remote_run import RemoteRun
from workflows.training.run import TrainingRun

_COUNTED_ROWS = 2048
"""Rows in which [SEP] is counted for the unigram baseline of next tokens."""


def open_pretraining(
    config: dict[str, Any], worker: Worker, folder: Path, remote: RemoteRun | None
) -> "PretrainingRun":
    """The run of a job (`OpenRun`); `config` holds `settings` and `shards`."""
    settings = PretrainSettings.model_validate(config["settings"])
    kind = PretrainingRun
    if worker.through_xla:
        from workflows.pretraining.xla_worker import XlaPretrainingRun

        kind = XlaPretrainingRun
    return kind(settings, worker, folder, Path(config["shards"]), remote)


class PretrainingRun(TrainingRun):
    """What one worker holds while it pre-trains."""

    def __init__(
        self,
        settings: PretrainSettings,
        worker: Worker,
        folder: Path,
        shards: Path,
        remote: RemoteRun | None = None,
    ) -> None:
        self.settings = settings
        self.shards_folder = shards
        self.shards = open_shards(shards, "train")
        self.vocabulary = Vocabulary.from_tokenizer(load_tokenizer(shards))
        self.config = settings.architecture(self.vocabulary.size, self.vocabulary.pad_id)
        self.total_steps, self.data_hash = settings.total_steps, self.shards.data_hash
        self.out_of_memory_remedy = lower_micro_batch(settings)
        super().__init__(settings, worker, folder, remote)

    def fresh_state(self) -> TrainingState:
        """The encoder and its heads, drawn from the seed."""
        torch.manual_seed(self.settings.seed)
        pairs = self.settings.rows.objective == "mlm_nsp"
        model = Bert.for_pretraining(self.config, next_sentence=pairs).to(self.worker.device)
        return TrainingState(model, create_optimizer(model, self.settings.optimizer))

    def batches(self, step: int) -> Iterator[StepBatches]:
        """The global batches from this step on, through all phases."""
        while step < self.total_steps:
            number, first = self.settings.phase_at(step)
            left = first + self.settings.phases[number].steps - step
            source = self._source(self.shards, number)
            steps = source.steps(
                step - first,
                *self.share(),
                pinned=self.worker.device.type == "cuda",
            )
            yield from islice(steps, left)
            step += left

    def share(self) -> tuple[int, int]:
        """Which share of each global batch is this worker's, from 0, and how many there are."""
        return self.worker.rank, self.worker.world_size

    def compute_loss(self) -> Any:  # noqa: ANN401 - compiled or not, it is called alike
        """The losses of the objective, compiled where the settings say so."""
        if self.settings.compile and self.worker.device.type == "cuda":
            # The programs of an earlier run in this process count against the compiler's limit.
            torch.compiler.reset()
            return compiled(compute_loss)
        return compute_loss

    def learning_rate(self, step: int) -> float:
        """One schedule over all phases."""
        optimizer = self.settings.optimizer
        return optimizer.peak_learning_rate * linear_schedule(
            step, total_steps=self.total_steps, warmup_steps=optimizer.warmup_steps
        )

    def step_metrics(self, result: StepResult) -> dict[str, float]:
        """See `workflows.pretraining.metrics`."""
        return step_metrics(result, self.settings.rows.objective)

    def step_flops(self, result: StepResult) -> float:
        """Encoder, predicted tokens and pairs, forward and backward."""
        sums = result.sums.tolist()
        return training_flops(
            self.config,
            num_tokens=int(result.num_real_tokens),
            sum_of_squared_lengths=result.sum_of_squared_lengths,
            num_predictions=int(sums[2]),
            num_rows=int(sums[5]),
            num_read=int(sums[2] + sums[5]),
        )

    def evaluation_is_due(self, step: int) -> bool:
        """Every so many steps."""
        return step % self.settings.evaluation.every_steps == 0

    def evaluate(self, step: int) -> dict[str, float]:
        """The figures of `evaluation` that there are, by their names in the journal."""
        objective = self.settings.rows.objective
        return {
            f"heldout/{metric_name(objective, name)}": value
            for name, value in asdict(self.evaluation(step)).items()
            if value is not None
        }

    def evaluation(self, step: int) -> PretrainingEvaluation:
        """Measures the model on the same held-out rows every time, divided among the workers."""
        number, _ = self.settings.phase_at(min(step, self.total_steps) - 1)
        heldout = self._source(open_shards(self.shards_folder, "heldout"), number)
        batches: Iterator[PretrainingBatch] = heldout.epoch_zero(
            self.settings.evaluation.num_rows, *self.share()
        )
        loss, dtype = self.evaluation_loss()
        return evaluate_pretraining(
            self.state.model,
            batches,
            loss,
            device=self.worker.device,
            token_counts=self._token_counts(number),
            autocast_dtype=dtype,
        )

    def evaluation_loss(self) -> tuple[ComputeLoss, torch.dtype | None]:
        """The loss function of an evaluation, and the type of its matrix products."""
        return compute_loss, self.dtype

    def _token_counts(self, phase: int) -> np.ndarray:
        """How often each token is to be predicted in training, [vocabulary]."""
        counts = np.load(self.shards_folder / "token_counts.npy", allow_pickle=False)
        if self.settings.rows.objective == "left_to_right":
            share = self._source(self.shards, phase).separator_share(_COUNTED_ROWS)
            counts[self.vocabulary.sep_id] = round(counts.sum() * share / (1 - share))
        return counts

    def _source(self, shards: TokenShards, phase: int) -> BatchSource:
        return BatchSource(
            shards,
            self.vocabulary,
            rows=self.settings.rows,
            batch=self.settings.batch,
            sequence_length=self.settings.phases[phase].sequence_length,
            seed=self.settings.seed,
            phase=phase,
            static_shapes=self.worker.device.type != "cpu" or self.worker.through_xla,
            cache_folder=self.folder.path / "cache",
        )

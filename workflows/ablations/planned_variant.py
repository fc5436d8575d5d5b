"""A variant of an ablation seen from its driver: its pre-training, and what became of that.

The run folder holds everything: it is the run that the same settings make elsewhere.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from bert_core.config import ModelConfig
from bert_core.flops import training_flops
from bert_core.model.bert import Bert
from workflows.ablations.outcome import VariantOutcome
from workflows.ablations.studies import Variant, shape_of, shape_text
from workflows.pretraining.job import PretrainingJob
from workflows.pretraining.metrics import metric_name
from workflows.progress import duration
from workflows.reproduction.run_origin import OUTCOME, write_outcome
from workflows.sweeps.table import TRAINED, TableRow
from workflows.tracking.journal import read_records
from workflows.tracking.tracker import ARTIFACTS_NAME, JOURNAL_NAME

if TYPE_CHECKING:
    from workflows.sweeps.training import TrialToTrain


@dataclass
class PlannedVariant:
    """A variant, and the run that it is; `failure` is why its last try has failed."""

    variant: Variant
    job: PretrainingJob
    failure: str | None = None
    news: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.job.folder.name

    @property
    def is_finished(self) -> bool:
        """Whether its model folder is written."""
        folder = self.job.folder
        return (folder.path / ARTIFACTS_NAME / OUTCOME).is_file() and folder.model.is_dir()

    @property
    def criterion(self) -> str:
        """What Tune is told of an evaluation."""
        return f"heldout/{metric_name(self.job.settings.rows.objective, 'masked_token_accuracy')}"

    @cached_property
    def config(self) -> ModelConfig:
        """The encoder's."""
        return self.job.settings.architecture(self.job.shards.vocab_size, pad_token_id=0)

    @cached_property
    def cost(self) -> float:
        """About the FLOPs of all its steps, as if all rows were full."""
        settings = self.job.settings
        is_decoder = settings.rows.objective == "left_to_right"
        share = 1.0 if is_decoder else settings.rows.masked_share
        num_rows = settings.batch.global_batch_size
        flops = 0.0
        for phase in settings.phases:
            num_tokens = num_rows * phase.sequence_length
            flops += phase.steps * training_flops(
                self.config,
                num_tokens=num_tokens,
                sum_of_squared_lengths=num_tokens * phase.sequence_length,
                num_predictions=round(num_tokens * share),
                num_rows=num_rows,
                num_read=round(num_tokens * share),
            )
        return flops

    def to_train(self) -> "TrialToTrain":
        """What the cluster gets of it."""
        from workflows.sweeps.training import TrialToTrain

        return TrialToTrain(self.job, self.criterion)

    def finish(self) -> None:
        """Writes the model folder and what lies beside it."""
        self.job.write_results()
        write_outcome(self.job.folder, self.job.last_checkpoint())

    @property
    def outcome(self) -> VariantOutcome:
        """What became of it so far."""
        planned = VariantOutcome(
            name=self.variant.name,
            title=self.variant.title,
            run=self.name,
            shape=shape_text(shape_of(self.job.settings)),
            question=self._question(),
            paper_row=self.variant.paper_row,
            is_reference=self.variant.is_reference,
            num_parameters=self._num_parameters(),
            failure=self.failure,
        )
        return self._with_figures(planned) if self.is_finished else planned

    def _with_figures(self, planned: VariantOutcome) -> VariantOutcome:
        from workflows.versions.finished_run import Usage

        loss = f"heldout/{metric_name(self.job.settings.rows.objective, 'masked_token_loss')}"
        figures: dict[str, float] = {}
        curve: list[tuple[int, float]] = []
        for record in read_records(self.job.folder.path / JOURNAL_NAME):
            of_heldout = {k: v for k, v in record.metrics.items() if k.startswith("heldout/")}
            figures |= of_heldout
            if loss in of_heldout:
                curve.append((record.step, of_heldout[loss]))
        checkpoint = self.job.folder.last_checkpoint()
        usage = Usage.of(checkpoint)
        return replace(
            planned,
            figures=figures,
            curve=tuple(curve),
            num_tokens=checkpoint.num_tokens_seen,
            seconds=checkpoint.extra["used_seconds"],
            device=usage.device,
            device_hours=usage.device_hours,
        )

    def _question(self) -> str:
        """What is to be predicted from what: variants that share it have losses that compare."""
        rows = self.job.settings.rows
        if rows.objective == "left_to_right":
            return "next tokens"
        shares = f"{rows.mask_token_share:.0%} [MASK], {rows.random_token_share:.0%} random"
        return f"masked tokens ({rows.masked_share:.0%} of all; {shares})"

    def _num_parameters(self) -> int:
        """Of the encoder, without heads."""
        with torch.device("meta"):
            encoder = Bert.for_pretraining(self.config).encoder
        return sum(each.numel() for each in encoder.parameters())


def variant_row(planned: PlannedVariant) -> TableRow:
    """A pre-training as a row of the live table: how far it is, and its loss on held-out text."""
    news, loss = planned.news, ""
    objective = planned.job.settings.rows.objective
    figure = news.get(f"heldout/{metric_name(objective, 'masked_token_loss')}")
    state = f"step {news['step']:,} of {news['total_steps']:,}" if "step" in news else "starting"
    told = ""
    if planned.is_finished:
        state = "trained"
        seconds = planned.job.folder.last_checkpoint().extra["used_seconds"]
        told = f"pre-trained, {duration(seconds)}"
    if figure is not None:
        loss = f"{figure:.3f}"
        told += f", held-out loss {loss}" if told else ""
    return TableRow(
        name=planned.name,
        title=planned.variant.title,
        state=TRAINED if planned.is_finished else news.get("state", ""),
        news=news,
        cost=planned.cost,
        cells={"variant": planned.variant.title, "state": state, "held-out loss": loss},
        told=told,
    )

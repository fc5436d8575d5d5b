"""The driver's half of pre-training: the workers' job, and the results of the last step.

In: a run folder with its last checkpoint and journal. Out: `model/` and `artifacts/`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_core.text.shards import TokenShards
from bert_core.tokenizer import load_tokenizer
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder, write_atomically
from workflows.runs.journal import read_records
from workflows.runs.remote import RemoteRun
from workflows.runs.storage import Storage
from workflows.runs.tracker import ARTIFACTS_NAME, JOURNAL_NAME, DatasetInput
from workflows.training.job import JobResults

if TYPE_CHECKING:
    from workflows.training.worker_main import WorkerJob


@dataclass
class PretrainingJob:
    """One pre-training run (a `TrainingJob`)."""

    kind: ClassVar[str] = "pretraining"
    settings_comment: ClassVar[str] = (
        "python workflows/pretrain.py --preset THIS_FILE --shards FOLDER_OF_THE_SAME_SHARDS"
    )

    settings: PretrainSettings
    storage: Storage
    folder: RunFolder
    shards: TokenShards
    remote: RemoteRun | None = None
    title: str = ""

    @property
    def source(self) -> str:
        """The text, as the user named it."""
        settings = self.settings
        return ", ".join(settings.text) if settings.shards is None else self.shards.folder.name

    def checkpoint_bytes(self) -> int:
        """Weights and moments of the model with all its heads."""
        import torch

        from bert_core.model.bert import Bert
        from bert_core.training.checkpoint import checkpoint_bytes

        with torch.device("meta"):
            config = self.settings.architecture(self.shards.vocab_size, pad_token_id=0)
            return checkpoint_bytes(Bert.for_pretraining(config), self.settings.optimizer.name)

    def worker_job(self) -> "WorkerJob":
        """See `workflows.pretraining.worker.open_pretraining`."""
        from workflows.pretraining.worker import open_pretraining
        from workflows.training.worker_main import WorkerJob

        settings, shards = self.settings.model_dump(mode="json"), self.shards.folder.absolute()
        opened = partial(open_pretraining, settings, shards)
        return WorkerJob(opened, self.folder.path, self.settings.storage)

    def described(self) -> tuple[dict[str, str], dict[str, str], DatasetInput]:
        """Preset and profile, the hashes of shards and tokenizer, the shards."""
        settings, shards = self.settings, self.shards
        params = {"preset": Path(settings.preset).stem, "profile": Path(settings.profile).stem}
        tags = {"data.sha256": shards.data_hash, "tokenizer.sha256": shards.tokenizer_hash}
        return params, tags, DatasetInput("train", shards.data_hash, self.source)

    def data_description(self) -> dict[str, Any]:
        """Counts and hashes of shards, tokenizer and text."""
        from workflows.reproduction.run_origin import describe_shards

        return describe_shards(self.shards.folder)

    def write_results(self) -> JobResults:
        """Writes plot, card and model folder from the last checkpoint and the journal."""
        from workflows.pretraining.report import export, pretraining_card, summary_lines
        from workflows.training.loss_plot import NEXT_TOKENS, PRETRAINING, plot_losses
        from workflows.versions.finished_run import lineage_of

        folder = self.folder
        checkpoint = folder.last_checkpoint()
        journal = folder.path / JOURNAL_NAME
        figures: dict[str, float] = {}
        for record in read_records(journal):
            figures |= record.metrics
        artifacts = folder.path / ARTIFACTS_NAME
        plot = artifacts / "loss.png"
        curves = NEXT_TOKENS if self.settings.rows.objective == "left_to_right" else PRETRAINING
        unigram_loss = figures["heldout/unigram_loss"]
        plot_losses(journal, plot, title=folder.name, curves=curves, unigram_loss=unigram_loss)
        card = pretraining_card(self, checkpoint, figures)
        write_atomically(artifacts / "model_card.md", card)
        tokenizer = load_tokenizer(self.shards.folder)
        lineage = lineage_of(self.folder, self.described()[1], figures)
        export(self, tokenizer, checkpoint.path, card, lineage)
        lines = summary_lines(self, checkpoint, figures, plot)
        return JobResults(lines, card, figures)

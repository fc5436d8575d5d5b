"""The driver's half of pre-training: the workers' job, and the results of the last step.

In: a run folder with its last checkpoint and journal. Out: `model/` and `artifacts/`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_core.text.shards import TokenShards, open_shards
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.start import Start
from workflows.runs.folder import RunFolder
from workflows.runs.storage import RemoteRun, Storage
from workflows.runs.tracker import DatasetInput

if TYPE_CHECKING:
    from workflows.training.run import WorkerJob


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
    start: Start | None = None

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
            config = self.settings.architecture(self.vocab_size, pad_token_id=0)
            return checkpoint_bytes(Bert.for_pretraining(config), self.settings.optimizer.name)

    @property
    def vocab_size(self) -> int:
        """Rows of the table of word pieces; a start model may have more than its tokenizer."""
        return self.shards.vocab_size if self.start is None else self.start.config.vocab_size

    def worker_job(self) -> "WorkerJob":
        """See `workflows.pretraining.worker.open_pretraining`."""
        from workflows.pretraining.worker import open_pretraining
        from workflows.training.run import WorkerJob

        paths = {name: getattr(self.settings, name) for name in ("replay", "decay_from")}
        absolute = {name: str(path.absolute()) for name, path in paths.items() if path is not None}
        settings = self.settings.model_dump(mode="json") | absolute
        shards = self.shards.folder.absolute()
        start = None if self.start is None else self.start.folder
        opened = partial(open_pretraining, settings, shards, start)
        return WorkerJob(opened, self.folder.path, self.settings.storage)

    def described(self) -> tuple[dict[str, str], dict[str, str], DatasetInput]:
        """Preset and profile, the hashes of shards and tokenizer, the shards."""
        settings, shards = self.settings, self.shards
        params = {"preset": Path(settings.preset).stem, "profile": Path(settings.profile).stem}
        tags = {"data.sha256": shards.data_hash, "tokenizer.sha256": shards.tokenizer_hash}
        if self.start is not None:
            tags |= {"start.model": self.start.name, "start.sha256": self.start.sha256}
        if settings.replay is not None:
            tags["replay.sha256"] = open_shards(settings.replay, "train").data_hash
        return params, tags, DatasetInput("train", shards.data_hash, self.source)

    def data_description(self) -> dict[str, Any]:
        """Counts and hashes of shards, tokenizer and text."""
        from workflows.reproduction.run_origin import describe_shards

        described = describe_shards(self.shards.folder)
        if self.start is not None:
            described["start"] = {"model": self.start.name, "sha256": self.start.sha256}
        if self.settings.replay is not None:
            described["replay"] = describe_shards(self.settings.replay)
        return described

"""The driver's half of fine-tuning: the workers' job, and the results of the last step.

In: a run folder with its last checkpoint and journal. Out: `model/` and `artifacts/`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bert_core.errors import one_line
from workflows.finetuning.data import TaskData, located
from workflows.finetuning.settings import TaskRunSettings
from workflows.model_location import EncoderFolder, model_name
from workflows.reproduction.run_origin import describe_task_data, encoder_tags
from workflows.runs.folder import RunFolder
from workflows.runs.storage import RemoteRun, Storage
from workflows.runs.tracker import DatasetInput

if TYPE_CHECKING:
    from workflows.training.run import WorkerJob


@dataclass
class FinetuningJob:
    """One fine-tuning run (a `TrainingJob`)."""

    kind: ClassVar[str] = "finetuning"
    settings_comment: ClassVar[str] = "the settings of a run of workflows/finetune.py"

    settings: TaskRunSettings
    storage: Storage
    folder: RunFolder
    encoder: EncoderFolder
    data: TaskData
    remote: RemoteRun | None = None
    title: str = ""

    def checkpoint_bytes(self) -> int:
        """Weights and moments, and the best epoch's weights beside them."""
        from bert_core.model_folder import weight_files
        from bert_core.training.checkpoint import MOMENTS_PER_WEIGHT

        copies = 2 + MOMENTS_PER_WEIGHT[self.settings.optimizer.name]
        return copies * sum(file.stat().st_size for file in weight_files(self.encoder.path))

    def worker_job(self) -> "WorkerJob":
        """See `workflows.finetuning.worker.open_finetuning`."""
        from workflows.finetuning.worker import open_finetuning
        from workflows.training.run import WorkerJob

        settings = self.settings.model_dump(mode="json") | self._sources()
        encoder = self.encoder.path.absolute()
        opened = partial(open_finetuning, settings, encoder, self.data.sha256, self.features)
        if self.data.teacher is not None:
            from workflows.finetuning.teacher import Teaching

            storage, precision = self.storage.folder, self.settings.precision
            opened = partial(opened, teaching=Teaching.of(self.data.teacher, storage, precision))
        return WorkerJob(opened, self.folder.path, self.settings.storage)

    def _sources(self) -> dict[str, Any]:
        """Where workers find the data, wherever they run; of test they need to know nothing."""
        settings = self.settings
        given = {name: getattr(settings, name) for name in ("data", "train", "dev", "exclude")}
        places = {name: str(located(path)) for name, path in given.items() if path}
        unlabelled = getattr(settings, "unlabelled", ())
        others = {"unlabelled": [str(located(path)) for path in unlabelled]} if unlabelled else {}
        return {"test": None} | places | others

    @property
    def features(self) -> Path:
        """The folder of hidden states: that of this data under this encoder."""
        parts = (self.encoder.sha256[:12], self.data.sha256[:12], self.settings.precision)
        return self.storage.folder.absolute() / "features" / "-".join(parts)

    def described(self) -> tuple[dict[str, str], dict[str, str], DatasetInput]:
        """Task and profile, the hashes of data and encoder, the data."""
        params = {
            "profile": Path(self.settings.profile).stem,
            "examples.train": str(len(self.data.train.examples)),
            "examples.dev": str(len(self.data.dev.examples)),
            "labels": one_line(", ".join(self.data.task.labels)),
        }
        tags = {"data.sha256": self.data.sha256} | encoder_tags(self.encoder)
        if (teacher := self.data.teacher) is not None:
            tags |= {"teacher.name": teacher.version or model_name(teacher.path)}
            tags |= {"teacher.sha256": teacher.sha256}
        source = DatasetInput(self.settings.task, self.data.sha256, self.settings.data_name)
        return params, tags, source

    def data_description(self) -> dict[str, Any]:
        """Counts, labels and hashes of the examples."""
        settings, tokenizer = self.settings, self.encoder.tokenizer
        return describe_task_data(settings.task, settings.data_name, self.data, tokenizer)

"""The end of a run: its model folder becomes a version, its summary is printed and kept."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from bert_core.errors import UserError
from bert_core.training.checkpoint import CheckpointInfo
from workflows.registry import register_model_folder
from workflows.run_folder import RunFolder, write_atomically
from workflows.tracking.tracker import SPECIFICATION_NAME, TrackingSummary, read_json
from workflows.training.job import JobResults, TrainingJob, tracking_uri

WATTS = {"cpu": 10, "cuda": 700, "tpu": 1000}
"""The assumption behind the energy estimate: a server core with memory, an H100 under load, a TPU
host with four v4 chips under load.
"""
_COUNTED = {"cpu": "core", "cuda": "GPU", "tpu": "TPU host"}


@dataclass(frozen=True)
class Usage:
    """What a run has used: device hours are those of cores on CPU, of GPUs, of hosts of a TPU."""

    device: str
    device_hours: float

    @classmethod
    def of(cls, checkpoint: CheckpointInfo) -> "Usage":
        """What led to a checkpoint, earlier starts included."""
        device = checkpoint.extra["device"]
        cores = checkpoint.num_threads if device == "cpu" else 1
        return cls(device, checkpoint.extra["used_seconds"] * cores / 3600)

    def __str__(self) -> str:
        """Hours and energy in words, with the assumption behind the energy."""
        kind, watts = _COUNTED[self.device], WATTS[self.device]
        kilowatt_hours = self.device_hours * watts / 1000
        return (
            f"{self.device_hours:.2f} {kind}-hours, about {kilowatt_hours:.3g} kWh "
            f"(assuming {watts} W per {kind})"
        )


def register(job: TrainingJob, results: JobResults, tracking: TrackingSummary) -> None:
    """Registers the model folder as a version, if asked to, and prints and keeps the summary.

    Of a run among others only the place is printed. When MLflow does not answer the summary says so
    and is not kept: the same command tries again.
    """
    folder, name = job.folder, job.settings.tracking.register_as
    version, problem = None, tracking.error
    if name and tracking.run_id and not problem:
        try:
            version = register_model_folder(
                folder.model,
                name=name,
                run_id=tracking.run_id,
                tracking_uri=tracking_uri(job),
                card=results.card,
                tags=lineage_tags(folder) | {"run": folder.name},
                metrics=results.figures,
            )
        except UserError as error:
            problem = str(error)
    lines = list(results.lines)
    if job.remote is not None:
        lines.append(f"address      {job.remote.address}")
    if version is not None:
        lines.append(f"registered   models:/{name}/{version}")
    if problem or tracking.unsent_records:
        lines.append(f"MLflow       {tracking.unsent_records:,} records not sent: {problem}")
        again = "sends them and registers the model" if name else "sends them"
        lines.append(f"             the same command {again}")
    else:
        lines.append(f"MLflow       {open_command(tracking_uri(job))}")
    text = "\n".join(lines)
    if not problem and not tracking.unsent_records:
        write_atomically(folder.summary, text + "\n")
        if job.title:
            text = f"{job.title}  finished: {folder.path}"
    print(text, flush=True)


def open_command(tracking_uri: str) -> str:
    """What to type, or where to point a browser, to see the run in MLflow."""
    if tracking_uri.startswith("http"):
        return tracking_uri
    beside_python = Path(sys.executable).with_name("mlflow")
    program = str(beside_python) if beside_python.exists() else "mlflow"
    return shlex.join([program, "ui", "--backend-store-uri", tracking_uri])


def lineage_tags(folder: RunFolder) -> dict[str, str]:
    """What a version says of its origin: the tags of its run."""
    return read_json(folder.path / SPECIFICATION_NAME).get("tags", {})

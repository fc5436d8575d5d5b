"""The end of a run: usage, lineage, registration of its model folder, and the summary."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_core.errors import UserError
from bert_core.lineage import Lineage
from bert_core.training.checkpoint import CheckpointInfo
from serving.registry import lineage_of_tags
from workflows.runs.folder import RunFolder, write_atomically
from workflows.runs.tracker import SPECIFICATION_NAME, STATE_NAME, TrackingSummary, read_json
from workflows.versions.registration import register_model_folder

WATTS = {"cpu": 10, "cuda": 700, "tpu": 1000}
"""Assumptions of the energy estimate: a server core with memory, an H100 under load, a TPU host
with four v4 chips under load.
"""
MEASURED = ("heldout/", "dev/")
"""Prefixes of figures that are measured on data that was not trained on."""
_COUNTED = {"cpu": "core", "cuda": "GPU", "tpu": "TPU host"}


@dataclass(frozen=True)
class Usage:
    """The device hours of a run: of CPU cores, GPUs, or TPU hosts."""

    device: str
    device_hours: float

    @classmethod
    def of(cls, checkpoint: CheckpointInfo) -> "Usage":
        """Returns the usage up to a checkpoint, earlier starts included."""
        device = checkpoint.extra["device"]
        cores = checkpoint.num_threads if device == "cpu" else 1
        return cls(device, checkpoint.extra["used_seconds"] * cores / 3600)

    def __str__(self) -> str:
        """Hours and estimated energy, with the assumption."""
        kind, watts = _COUNTED[self.device], WATTS[self.device]
        kilowatt_hours = self.device_hours * watts / 1000
        return (
            f"{self.device_hours:.2f} {kind}-hours, about {kilowatt_hours:.3g} kWh "
            f"(assuming {watts} W per {kind})"
        )


def register(
    folder: RunFolder,
    tracking: TrackingSummary,
    *,
    name: str | None,
    tracking_uri: str,
    card: str,
    metrics: Mapping[str, float],
    summary: Sequence[str],
    title: str = "",
) -> None:
    """Registers the model folder as a version of `name`, if given; prints and stores the summary.

    With a `title`, as runs of a group have one, only the folder is printed. If MLflow does not
    answer, the summary says so and is not stored: the same command tries again.
    """
    version, problem = None, tracking.error
    if name and tracking.run_id and not problem:
        try:
            version = register_model_folder(
                folder.model,
                name=name,
                run_id=tracking.run_id,
                tracking_uri=tracking_uri,
                card=card,
                tags=lineage_tags(folder) | {"run": folder.name},
                metrics=metrics,
            )
        except UserError as error:
            problem = str(error)
    lines = list(summary)
    if version is not None:
        lines.append(f"registered   models:/{name}/{version}")
    if problem or tracking.unsent_records:
        lines.append(f"MLflow       {tracking.unsent_records:,} records not sent: {problem}")
        again = "sends them and registers the model" if name else "sends them"
        lines.append(f"             the same command {again}")
    else:
        lines.append(f"MLflow       {open_command(tracking_uri)}")
    text = "\n".join(lines)
    if not problem and not tracking.unsent_records:
        write_atomically(folder.summary, text + "\n")
        if title:
            text = f"{title}  finished: {folder.path}"
    print(text, flush=True)


def lineage_of(
    folder: RunFolder, described: Mapping[str, str], figures: Mapping[str, float]
) -> Lineage:
    """Returns the lineage that the run's model folder is written with.

    `described` are the run's own tags. Of the figures those are kept that are measured on data that
    was not trained on. `run_id` is None if MLflow has not answered yet.
    """
    measured = {
        name: value
        for name, value in figures.items()
        if name.startswith(MEASURED) and math.isfinite(value)
    }
    return lineage_of_tags({**described, **lineage_tags(folder)}).model_copy(
        update={
            "run": folder.name,
            "run_id": read_json(folder.path / STATE_NAME).get("run_id"),
            "metrics": measured,
        }
    )


def open_command(tracking_uri: str) -> str:
    """Returns the command, or the address, that shows the run in MLflow."""
    if tracking_uri.startswith("http"):
        return tracking_uri
    beside_python = Path(sys.executable).with_name("mlflow")
    program = str(beside_python) if beside_python.exists() else "mlflow"
    return shlex.join([program, "ui", "--backend-store-uri", tracking_uri])


def lineage_tags(folder: RunFolder) -> dict[str, str]:
    """Returns the tags of the run, which its versions carry too."""
    return read_json(folder.path / SPECIFICATION_NAME).get("tags", {})

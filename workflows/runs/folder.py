"""A run's place on disk: one name, one folder, one process at a time.

`<storage>/runs/<name>/` holds settings, checkpoints, journal, pictures and the exported model.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.strict_files import read_json

if TYPE_CHECKING:
    from bert_core.training.checkpoint import CheckpointInfo

WRITER_LOCK_NAME = "worker.lock"
ASIDE = ".before-"


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The exported model folder."""
        return self.path / "model"

    @property
    def settings(self) -> Path:
        """The resolved settings: give this file to `--preset` to repeat the run."""
        return self.path / "settings.yaml"

    @property
    def recipe(self) -> Path:
        """What a run must not change when it goes on."""
        return self.path / "recipe.json"

    @property
    def run_key(self) -> Path:
        """What tells the run from every other, those of the same name too."""
        return self.path / "run_key"

    @property
    def summary(self) -> Path:
        """What a finished run ended with."""
        return self.path / "summary.txt"

    def finished_summary(self) -> str:
        """The summary of a finished run, its paths as they are, be the storage moved since."""
        from workflows.runs.tracker import SPECIFICATION_NAME, read_json

        text = self.summary.read_text(encoding="utf-8")
        before = read_json(self.path / SPECIFICATION_NAME).get("folder")
        if before is None:
            return text
        storage = Path(before).parent.parent
        return text.replace(f"{storage}/", f"{self.path.absolute().parent.parent}/")

    @property
    def begun(self) -> bool:
        """Whether a worker has ever begun to write here."""
        return (self.path / WRITER_LOCK_NAME).exists()

    def is_trained(self) -> bool:
        """Whether the newest whole checkpoint is that of the last step."""
        from bert_core.training.checkpoint import newest_checkpoint

        path, _ = newest_checkpoint(self.checkpoints)
        return path is not None and is_of_last_step(path)

    def last_checkpoint(self) -> "CheckpointInfo":
        """The newest whole checkpoint; raises `UserError` where there is none."""
        from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint

        path, _ = newest_checkpoint(self.checkpoints)
        if path is None:
            raise UserError("no whole checkpoint", str(self.checkpoints), "give --fresh")
        return read_checkpoint(path)

    @property
    def ray(self) -> Path:
        """Ray Train's own files."""
        return self.path / "ray"


def is_of_last_step(checkpoint: Path) -> bool:
    """Whether a whole checkpoint is that of its run's last step."""
    from bert_core.training.checkpoint import read_checkpoint

    info = read_checkpoint(checkpoint)
    return info.step == info.extra.get("total_steps")


def set_aside(folder: RunFolder) -> Path:
    """Gives the run's folder a name with the time, and returns it."""
    return folder.path.rename(name_aside(str(folder.path)))


def name_aside(name: str) -> str:
    """The name of what is set aside now."""
    return f"{name}{ASIDE}{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def is_name_aside(name: str) -> bool:
    """Whether `name_aside` gave this name."""
    return ASIDE in name


@contextmanager
def sole_writer(folder: RunFolder, *, patience_seconds: float = 60) -> Iterator[None]:
    """Waits until no worker of an earlier start of this run is alive any more, then holds that.

    A driver that was killed leaves its workers to Ray, which ends them some seconds later.
    """
    with (folder.path / WRITER_LOCK_NAME).open("a") as lock:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(
                        "a worker of an earlier start of this run is still writing",
                        str(folder.path),
                        "end that process, then start again",
                    ) from None
                time.sleep(0.2)
        yield


def write_atomically(path: Path, text: str) -> None:
    """Writes a small file beside its name and renames it."""
    with atomic_write(path) as beside:
        beside.write_text(text, encoding="utf-8")


def read_seconds(path: Path) -> float:
    """The time that `write_atomically` has written as a number of JSON; 0 without the file."""
    seconds = read_json(path) if path.exists() else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0

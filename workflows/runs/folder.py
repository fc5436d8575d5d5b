"""A run's place on disk: one name, one folder, one process at a time.

`<storage>/runs/<name>/` holds settings, checkpoints, journal, pictures and the exported model.
`open_run` takes it for a process, new or to resume, of one recipe.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.disk import locked, write_atomically
from bert_core.errors import UserError
from bert_core.strict_files import read_json, read_json_object
from workflows.settings import differences

if TYPE_CHECKING:
    from bert_core.training.checkpoint import CheckpointInfo

WRITER_LOCK_NAME = "worker.lock"
_ASKED = "asked.json"
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

    def finish(self, summary: str, asked: Mapping[str, str | None]) -> None:
        """Writes what the run ended with, and what was asked of it, by option."""
        kept = {**self._asked(), **{name: each for name, each in asked.items() if each is not None}}
        write_atomically(self.path / _ASKED, json.dumps(kept))
        write_atomically(self.summary, summary)

    def has_answered(self, asked: Mapping[str, str | None]) -> bool:
        """Whether it is finished with all that is asked; None asks nothing.

        What an earlier version finished was asked whatever it is asked again.
        """
        if not self.summary.exists():
            return False
        kept = self._asked() if (self.path / _ASKED).exists() else asked
        return all(each is None or kept.get(name) == each for name, each in asked.items())

    def _asked(self) -> dict[str, str]:
        path = self.path / _ASKED
        return read_json(path, "delete it") if path.exists() else {}

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
    deadline = time.monotonic() + patience_seconds

    def wait() -> None:
        if time.monotonic() > deadline:
            what = "a worker of an earlier start of this run is still writing"
            raise UserError(what, str(folder.path), "end that process, then start again")
        time.sleep(0.2)

    with locked(folder.path / WRITER_LOCK_NAME, wait):
        yield


def read_seconds(path: Path) -> float:
    """The time that `write_atomically` has written as a number of JSON; 0 without the file."""
    seconds = read_json(path) if path.exists() else 0.0
    return float(seconds) if isinstance(seconds, int | float) else 0.0


@contextmanager
def open_run(
    storage: Path,
    name: str,
    recipe: dict[str, Any],
    *,
    fresh: bool,
    adopt: Callable[[RunFolder], Path | None] | None = None,
    kind: str = "runs",
) -> Iterator[RunFolder]:
    """Takes the run of this name for this process alone, new or to go on.

    It lies in the storage's folder `kind`: a training run in runs, a sweep of them in sweeps.

    `fresh` sets an earlier run aside under a name with the time. Raises `UserError` when another
    process trains it, when the storage cannot be written, and when the earlier run was made with
    another recipe (settings and data), naming what differs. A `UserError` inside, before the first
    worker began, leaves everything as it was. `adopt` is `RemoteRun.adopt` for a folder that is a
    working copy: the run at the address decides; processes of other machines are not kept out.
    """
    runs = storage / kind
    try:
        runs.mkdir(parents=True, exist_ok=True)
        lock = runs / f"{name}.lock"
        lock.touch()
    except OSError as error:
        raise UserError(
            f"cannot write to the storage, {error.strerror}",
            str(storage),
            "choose another --storage",
        ) from error

    def give_up() -> None:
        remedy = "wait for it, or give another --name"
        raise UserError("another process is training this run", name, remedy)

    with locked(lock, give_up):
        folder = RunFolder(runs / name)
        aside = None
        if fresh and folder.path.exists():
            aside = set_aside(folder)
        elif adopt is not None and not fresh:
            another = adopt(folder)
            if another is not None:
                print(f"aside    {another}: of another run than the one that is at the address")
        is_new = not folder.recipe.exists()
        if is_new:
            folder.path.mkdir(exist_ok=True)
            write_atomically(folder.recipe, json.dumps(recipe, indent=1, sort_keys=True))
        else:
            _refuse_another_recipe(folder, recipe)
        shutil.rmtree(folder.ray, ignore_errors=True)
        try:
            yield folder
        except UserError:
            if is_new and not folder.begun:
                shutil.rmtree(folder.path)
                if aside is not None:
                    aside.rename(folder.path)
            raise


def _refuse_another_recipe(folder: RunFolder, recipe: dict[str, Any]) -> None:
    earlier = read_json_object(folder.recipe, "give another --name, or --fresh to start over")
    changed = differences(earlier, json.loads(json.dumps(recipe)))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise UserError(
            f"run {folder.name} was made with other settings or data",
            "; ".join(changed[:3]) + more,
            "give another --name, or --fresh to start over",
        )

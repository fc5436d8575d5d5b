"""The folder a long job writes to: continued, found finished or refused, and locked meanwhile.

Unfinished work lies in `.preparing` inside it; `plan.json` says what was asked for.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_core.disk import DiskFullError, locked
from bert_core.errors import UserError
from bert_core.strict_files import read_json_object
from bert_core.text.shards import INDEX_NAME, write_bytes
from bert_core.text.sources import CorpusPart
from workflows.settings import differences

_FRESH = "give another --output, or --fresh to start over"

WORK_NAME = ".preparing"
PLAN_NAME = "plan.json"
LOCK_NAME = "lock"


class WorkKeptError(UserError):
    """An error of the surroundings, after which the same command goes on."""


def absolute_output(output: Path) -> Path:
    """Raises `UserError` where Ray removes what is relative: in a submitted job."""
    output = output.expanduser()
    if not output.is_absolute() and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        what = "a relative output of a submitted job lies in Ray's temporary folder"
        raise UserError(what, str(output), "give an absolute --output")
    return output.absolute()


def new_folder(output: Path) -> Path:
    """The absolute folder of --output; raises `UserError` if it exists or cannot be made."""
    output = absolute_output(output)
    if output.exists():
        raise UserError("the output exists already", str(output), "pass a new folder")
    check_folder(output, "--output")
    return output


def files_hash(parts: Iterable[CorpusPart]) -> "hashlib._Hash":
    """The sha256 of names, sizes and times of the files of these parts; more may follow."""
    files = hashlib.sha256()
    for part in parts:
        files.update(json.dumps([part.as_dict(), _modified(part)], sort_keys=True).encode())
    return files


def _modified(part: CorpusPart) -> int:
    """When the newest file of a part was written, in nanoseconds; 0 where it is of no file."""
    if part.kind == "documentation":
        return 0
    path = Path(part.path.partition("=")[2] if part.kind == "task" else part.path)
    files = path.rglob("*") if part.kind == "task" and path.is_dir() else [path]
    return max((file.stat().st_mtime_ns for file in files if file.is_file()), default=0)


def is_finished(output: Path, plan: dict[str, Any], *, fresh: bool) -> bool:
    """Whether the folder holds the finished result of this plan.

    With `fresh`, a folder of ours is renamed out of the way. Raises `UserError` if the folder holds
    something else, or the result of another plan, with the differences.
    """
    if output.exists() and not output.is_dir():
        raise UserError("the output is a file", str(output), "give another --output")
    if not output.exists() or not any(output.iterdir()):
        return False
    plans = [output / PLAN_NAME, output / WORK_NAME / PLAN_NAME]
    existing = [path for path in plans if path.is_file()]
    if not existing and not (output / INDEX_NAME).is_file():
        remedy = "give an empty or a new folder"
        raise UserError("the output folder holds other files", str(output), remedy)
    if fresh:
        _rename_old(output)
        return False
    old = read_json_object(existing[0], _FRESH) if existing else {}
    if old != plan:
        settings = old.get("settings")
        changed = differences(settings if isinstance(settings, dict) else {}, plan["settings"])
        what = "; ".join(changed) or "the files it is made of have changed"
        remedy = "give another --output, or --fresh to start over"
        raise UserError(f"prepared otherwise before ({what})", str(output), remedy)
    return existing[0].parent == output


def _rename_old(output: Path) -> None:
    names = (output.with_name(f"{output.name}.old-{number}") for number in range(1, 10_000))
    output.rename(next(name for name in names if not name.exists()))


def check_disk(output: Path, num_bytes: float) -> None:
    """Raises `UserError` if the folder cannot be made, or its disk has less than `num_bytes`."""
    existing = check_folder(output, "--output")
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        what = f"{free / 1e9:,.1f} GB of free disk, about {num_bytes / 1e9:,.1f} GB needed"
        raise UserError(what, str(existing), "free some space, or give another --output")


def check_folder(folder: Path, option: str) -> Path:
    """Raises `UserError` if a folder cannot be made or written to; gives what of it is there."""
    folder = folder.expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise UserError("not a folder", str(existing), f"give another {option}")
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        raise UserError("no permission to write", str(existing), f"give another {option}")
    return existing


@contextmanager
def work_folder(output: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """Makes the folder of unfinished work and holds its lock.

    It is removed at the end and after a `UserError`, which only other input can mend, and
    stays after anything else, to go on from.
    """
    work = output / WORK_NAME
    existed = output.exists()
    try:
        work.mkdir(parents=True, exist_ok=True)
        (work / LOCK_NAME).touch()
    except OSError as error:
        what = f"cannot write ({error.strerror})"
        raise UserError(what, str(output), "give another --output") from error

    def give_up() -> None:
        remedy = "wait for the other process, or give another --output"
        raise UserError("being prepared by another process", str(output), remedy)

    with locked(work / LOCK_NAME, give_up):
        _write_plan(work, plan)
        try:
            yield work
        except (WorkKeptError, DiskFullError):
            raise
        except UserError:
            _remove(work if existed else output)
            raise
        _write_plan(output, plan)
        shutil.rmtree(work)


def _remove(folder: Path) -> None:
    """Removes a folder; tries again if a worker has just finished a part in it."""
    for _ in range(20):
        try:
            return shutil.rmtree(folder)
        except OSError:
            time.sleep(0.1)
    return shutil.rmtree(folder)


def _write_plan(folder: Path, plan: dict[str, Any]) -> None:
    write_bytes(folder / PLAN_NAME, json.dumps(plan, indent=1, sort_keys=True).encode())

"""Opens a run by its name: for one process at a time, new or to resume, of one recipe."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_core.errors import UserError
from bert_core.strict_files import read_json_object
from workflows.runs.folder import RunFolder, set_aside, write_atomically
from workflows.runs.remote import RemoteRun
from workflows.settings import differences


@contextmanager
def open_run(
    storage: Path,
    name: str,
    recipe: dict[str, Any],
    *,
    fresh: bool,
    remote: RemoteRun | None = None,
    kind: str = "runs",
) -> Iterator[RunFolder]:
    """Takes the run of this name for this process alone, new or to go on.

    It lies in the storage's folder `kind`: a training run in runs, a sweep of them in sweeps.

    `fresh` sets an earlier run aside under a name with the time. Raises `UserError` when another
    process trains it, when the storage cannot be written, and when the earlier run was made with
    another recipe (settings and data), naming what differs. A `UserError` inside, before the first
    worker began, leaves everything as it was. With a `remote` the folder is a working copy and the
    run there decides; processes of other machines are not kept out.
    """
    runs = storage / kind
    try:
        runs.mkdir(parents=True, exist_ok=True)
        lock = (runs / f"{name}.lock").open("a+")
    except OSError as error:
        raise UserError(
            f"cannot write to the storage, {error.strerror}",
            str(storage),
            "choose another --storage",
        ) from error
    with lock:
        _lock(lock.fileno(), name)
        folder = RunFolder(runs / name)
        aside = None
        if fresh and folder.path.exists():
            aside = set_aside(folder)
        elif remote is not None and not fresh:
            another = remote.adopt(folder)
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


def _lock(descriptor: int, name: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(
            "another process is training this run", name, "wait for it, or give another --name"
        ) from error


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

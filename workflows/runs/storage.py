"""Where runs lie: a folder, or a URI (`s3://`, `gs://`, `file://`) and a working copy of it here.

In: what follows `--storage`. Out: the storage folder on this machine, and `RemoteRun`, a run at the
URI: every machine works in its own copy, the URI is the truth. Recipe, checkpoints and results go
there and come from there. A lock there is none: that two machines do not train one run at the same
time is up to whoever starts them. Credentials come from the environment, as pyarrow finds them;
pyarrow is imported when there is a URI.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from bert_core.disk import atomic_write, locked, write_atomically
from bert_core.errors import UserError, reason_of
from bert_core.strict_files import is_plain_path
from bert_core.training import checkpoint_folder
from bert_core.training.checkpoint_folder import (
    MANIFEST,
    checkpoint_name,
    checkpoint_step,
    committed_checkpoints,
    is_checkpoint_name,
)
from workflows.runs.folder import (
    WRITER_LOCK_NAME,
    RunFolder,
    name_aside,
    set_aside,
)
from workflows.runs.journal import last_step
from workflows.runs.tracker import ARTIFACTS_NAME, JOURNAL_NAME
from workflows.settings import storage_folder

if TYPE_CHECKING:
    import torch

OBJECT_STORES = ("s3", "gcs", "abfs")
"""Where a file appears under its name only when it is whole, and folders need not be made."""


@dataclass(frozen=True)
class Storage:
    """Where runs lie: a folder on this machine, or the working copy of what lies at a URI."""

    folder: Path
    uri: str | None = None


def open_storage(storage: str) -> Storage:
    """The storage folder of a path or URI; nothing but a URI is looked at before it is used.

    Raises `UserError` for a URI that cannot be opened and written with the credentials that the
    environment has for it.
    """
    folder = storage_folder(storage)
    if "://" not in storage:
        return Storage(folder)
    if re.match(r"[^/]*//[^/@]*:[^/@]*@", storage):
        raise UserError(
            "credentials in the storage's address would end up in logs and checkpoints",
            storage.split("://")[0] + "://…",
            "give them in the environment, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://",
        )
    RemoteFolder(storage).try_writing()
    return Storage(folder, storage)


class RemoteFolder:
    """The files below an address, by their names relative to it.

    Every method raises `UserError` when the address is out of reach or refuses.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow.fs import FileSystem

        self.address = uri.partition("?")[0].rstrip("/")
        with self._reach("open"):
            self._files, root = FileSystem.from_uri(uri)
        self._root = root.rstrip("/")

    def try_writing(self) -> None:
        """Writes a small file and removes it, to find out before the work begins."""
        name = f".bertline-{uuid4().hex}"
        with tempfile.NamedTemporaryFile() as empty:
            self.upload(Path(empty.name), name)
        self.remove(name)

    def read(self, name: str) -> bytes | None:
        """A small file's content, None when it is not there."""
        with self._reach("read", name):
            try:
                with self._files.open_input_stream(self._path(name)) as stream:
                    return stream.readall()
            except FileNotFoundError:
                return None

    def names(self, below: str) -> list[str]:
        """The names of all files below a folder, sorted; none where it does not exist."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path(below), recursive=True, allow_not_found=True)
        with self._reach("list", below):
            infos = self._files.get_file_info(selector)
        return sorted(info.path[len(self._root) + 1 :] for info in infos if info.is_file)

    def upload(self, source: Path, name: str) -> None:
        """Copies a file of this machine there; it appears whole."""
        from pyarrow.fs import LocalFileSystem, copy_files

        path, local = self._path(name), LocalFileSystem()
        with self._reach("write", name):
            if self._files.type_name in OBJECT_STORES:
                copy_files(str(source), path, local, self._files)
                return
            self._make_folder_of(path)
            copy_files(str(source), f"{path}.part", local, self._files)
            self._files.move(f"{path}.part", path)

    def download(self, name: str, target: Path) -> None:
        """Copies a file from there; the folder it goes to is made."""
        from pyarrow.fs import LocalFileSystem, copy_files

        with self._reach("fetch", name):
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_files(self._path(name), str(target), self._files, LocalFileSystem())

    def move(self, name: str, target: str) -> None:
        """Gives a file another name; an object store copies it there on its own side."""
        with self._reach("move", name):
            self._make_folder_of(self._path(target))
            self._files.move(self._path(name), self._path(target))

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with self._reach("remove", name), suppress(FileNotFoundError):
            self._files.delete_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Removes a folder and all that is in it, if it is there."""
        with self._reach("remove", name), suppress(FileNotFoundError):
            self._files.delete_dir(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folder_of(self, path: str) -> None:
        if self._files.type_name not in OBJECT_STORES:
            self._files.create_dir(path.rpartition("/")[0])

    @contextmanager
    def _reach(self, deed: str, name: str = "") -> Iterator[None]:
        from pyarrow import ArrowException

        try:
            yield
        except (OSError, ArrowException) as error:
            raise UserError(
                f"cannot {deed}, {reason_of(error)}",
                f"{self.address}/{name}".rstrip("/"),
                "check the address, and the credentials in the environment; or choose another "
                "--storage",
            ) from error


class RemoteRun:
    """One run at a URI, seen from one machine and its working copy.

    There it holds what decides about it (recipe.json, run_key, summary.txt), settings.yaml, the
    newest checkpoints, and at the end model/, artifacts/ and the journal. A checkpoint counts once
    its manifest is there: that goes up last and is removed first. Methods raise `UserError` when
    the URI is out of reach.
    """

    def __init__(self, uri: str, name: str) -> None:
        self._remote = RemoteFolder(uri)
        self._base = f"runs/{name}"
        self.address = f"{self._remote.address}/{self._base}"
        self._followed = ""

    def adopt(self, folder: RunFolder) -> Path | None:
        """Makes the working copy one of the run at the URI: its recipe, its key, its summary.

        A copy of another run is set aside: of one that another machine started over, or that is
        no more at the URI; returns where it went. For the driver, and for each worker before it
        opens the folder.
        """
        with _lock_of_copy(folder):
            paths = (folder.recipe, folder.settings, folder.summary, folder.run_key)
            there = {path: self._remote.read(self._in_run(path)) for path in paths}
            key = there[folder.run_key] if there[folder.recipe] is not None else None
            own_key = folder.run_key.read_bytes() if folder.run_key.exists() else None
            is_another = folder.path.exists() and own_key != key
            aside = set_aside(folder) if is_another else None
            if key is None:
                return aside
            folder.path.mkdir(parents=True, exist_ok=True)
            for path, content in there.items():
                if content is None:
                    path.unlink(missing_ok=True)
                else:
                    write_atomically(path, content.decode())
        return aside

    def begin(self, folder: RunFolder, *, fresh: bool) -> None:
        """Puts what decides about the run at the URI; `fresh` sets aside what is there.

        From here on the run has begun, be it on other machines alone.
        """
        if fresh:
            self._set_aside()
        for path in (folder.settings, folder.recipe, folder.run_key):
            self._remote.upload(path, self._in_run(path))
        (folder.path / WRITER_LOCK_NAME).touch()

    def catch_up(self, folder: RunFolder) -> None:
        """Brings checkpoint and journal to where the URI is: for the driver, before the workers."""
        step, _ = self.pull(folder)
        self.take_journal(folder, step)

    def pull(self, folder: RunFolder, at_most: int | None = None) -> tuple[int, list[str]]:
        """Brings the newest whole checkpoint, of step `at_most` at most, into the working copy.

        Returns its step, 0 for none, and a message for each damaged one passed over. Of what lies
        only here, or is newer, nothing is left: no other machine can go on from it, all workers
        have to start at one step, and the steps in between come out the same once more.
        """
        messages, newest = [], 0
        with _lock_of_copy(folder):
            steps = [step for step in self._steps() if at_most is None or step <= at_most]
            for step in steps:
                fault = self._fetch(folder, checkpoint_name(step))
                if fault is None:
                    newest = step
                    break
                path = f"{self.address}/checkpoints/{checkpoint_name(step)}"
                messages.append(f"checkpoint {path} is damaged and passed over: {fault}")
            for path in committed_checkpoints(folder.checkpoints):
                if checkpoint_step(path) > newest or checkpoint_step(path) not in steps:
                    checkpoint_folder.remove(path)
        return newest, messages

    def push_checkpoint(self, path: Path, keep: int) -> None:
        """Uploads a sealed checkpoint, unless it is there; keeps the newest `keep` up to it."""
        step = checkpoint_step(path)
        name = self._in_checkpoint(step)
        if self._remote.read(f"{name}/{MANIFEST}") != (path / MANIFEST).read_bytes():
            self._remote.remove(f"{name}/{MANIFEST}")
            files = [file for file in sorted(path.rglob("*")) if file.is_file()]
            for file in sorted(files, key=lambda file: file.name == MANIFEST):
                self._remote.upload(file, f"{name}/{file.relative_to(path)}")
        kept = [number for number in self._steps() if number <= step][:keep]
        for old in self._steps(committed=False):
            if old < step and old not in kept:
                self._remote.remove(f"{self._in_checkpoint(old)}/{MANIFEST}")
                self._remote.remove_folder(self._in_checkpoint(old))

    def follow(self, folder: RunFolder, checkpoint: str | None) -> None:
        """Takes the journal of the checkpoint that a worker elsewhere has saved, for tracking.

        What fails is tried again with the next one: tracking stops no run.
        """
        if checkpoint is not None and checkpoint != self._followed:
            self._followed = checkpoint
            with suppress(UserError):
                self.take_journal(folder, checkpoint_step(Path(checkpoint)))

    def take_journal(self, folder: RunFolder, step: int) -> None:
        """Makes the checkpoint's journal the working copy's, unless that goes as far.

        As it does where the worker that writes it is on this machine.
        """
        journal = folder.path / JOURNAL_NAME
        if last_step(journal) >= step:
            return
        copy = Path("files", JOURNAL_NAME)
        here = folder.checkpoints / checkpoint_name(step) / copy
        with atomic_write(journal) as beside:
            if here.exists():
                shutil.copyfile(here, beside)
            else:
                self._remote.download(f"{self._in_checkpoint(step)}/{copy}", beside)

    def settle(self, folder: RunFolder, step: int, keep: int) -> None:
        """After the workers: has the last checkpoint both at the URI and here, with its journal.

        What a worker on this machine could not upload is tried once more.
        """
        path = folder.checkpoints / checkpoint_name(step)
        if path.exists():
            self.push_checkpoint(path, keep)
        elif self.pull(folder)[0] != step:
            raise UserError(
                f"the checkpoint of step {step:,} did not get to the storage",
                self.address,
                "the same command goes on from the one before",
            )
        self.take_journal(folder, step)

    def push_results(self, folder: RunFolder) -> None:
        """Uploads model, artifacts and journal, and the summary last, if there is one."""
        paths = [folder.path / JOURNAL_NAME, folder.settings]
        for part in (folder.model, folder.path / ARTIFACTS_NAME):
            paths += sorted(path for path in part.rglob("*") if path.is_file())
        for path in [*paths, *folder.path.glob(folder.summary.name)]:
            self._remote.upload(path, f"{self._base}/{path.relative_to(folder.path)}")

    def _in_run(self, path: Path) -> str:
        return f"{self._base}/{path.name}"

    def _in_checkpoint(self, step: int) -> str:
        return f"{self._base}/checkpoints/{checkpoint_name(step)}"

    def _steps(self, *, committed: bool = True) -> list[int]:
        """The steps of the checkpoints at the URI, newest first; else of all that is left there."""
        steps = set()
        for name in self._remote.names(f"{self._base}/checkpoints"):
            folder, _, file = name.removeprefix(f"{self._base}/checkpoints/").partition("/")
            if is_checkpoint_name(folder) and (file == MANIFEST or (file and not committed)):
                steps.add(checkpoint_step(Path(folder)))
        return sorted(steps, reverse=True)

    def _fetch(self, folder: RunFolder, name: str) -> str | None:
        """Brings one checkpoint into the working copy; returns what is wrong with it, if it is."""
        source, final = f"{self._base}/checkpoints/{name}", folder.checkpoints / name
        if final.exists():
            # Whole is not enough: what a lost upload left here may differ from it in the last bit.
            manifest = self._remote.read(f"{source}/{MANIFEST}")
            is_whole = checkpoint_folder.damage(final) is None
            if is_whole and (final / MANIFEST).read_bytes() == manifest:
                return None
            checkpoint_folder.remove(final)
        temporary = checkpoint_folder.temporary_folder(final)
        try:
            for file in self._remote.names(source):
                name = file.removeprefix(f"{source}/")
                if not is_plain_path(name):
                    return f"it has a file named {name[:60]!r}"
                self._remote.download(file, temporary / name)
            fault = checkpoint_folder.damage(temporary)
            if fault is None:
                temporary.rename(final)
            return fault
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _set_aside(self) -> None:
        """Moves the run's files one by one: manifests first, recipe and key last.

        So that a kill in between leaves the run there with fewer checkpoints, or none of it.
        """
        names = self._remote.names(self._base)
        aside = name_aside(self._base)
        last = (f"{self._base}/recipe.json", f"{self._base}/run_key")
        names.sort(key=lambda name: (name in last, not name.endswith(f"/{MANIFEST}"), name))
        for name in names:
            self._remote.move(name, aside + name.removeprefix(self._base))
        self._remote.remove_folder(self._base)


def agree_on_checkpoint(
    remote: RemoteRun, folder: RunFolder, device: "torch.device"
) -> tuple[int, list[str]]:
    """The newest step whose checkpoint every worker has, 0 for none, and what was passed over.

    For all workers at once. Each looks at the URI by itself, and a worker of an earlier start may
    have added to it between two looks, or a file may not have come over whole.
    """
    import torch
    import torch.distributed as dist

    from bert_core.training.ranks import world_size

    at_most, messages = None, []
    while True:
        step, passed_over = remote.pull(folder, at_most)
        messages += passed_over
        lowest = highest = step
        if world_size() > 1:
            ends = torch.tensor([step, -step], device=device)
            dist.all_reduce(ends, dist.ReduceOp.MIN)
            lowest, highest = int(ends[0]), -int(ends[1])
        if lowest == highest:
            return step, list(dict.fromkeys(messages))
        at_most = lowest


@contextmanager
def _lock_of_copy(folder: RunFolder) -> Iterator[None]:
    """Held by one process of this machine at a time, while it brings the copy up to date."""
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.path.with_name(f".{folder.name}.copy.lock")):
        yield

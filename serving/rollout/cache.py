"""The cache of fetched models: a folder is named by the hash of its content, or by its model's id.

In: what downloads a folder. Out: its place, whole, until nothing names it and its room is needed.
Where the hash is the name, the model's id at MLflow is a link to it.
"""

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bert_core.disk import (
    LockTakenError,
    file_sha256,
    flush_to_disk,
    give_up,
    locked,
    raise_disk_full,
)
from serving.rollout.aliases import POINTERS, read_pointer

CHECKSUMS = "checksums"
"""The list in a model folder, as `bert_core.model_folder` has it, which would load torch here."""
UNUSED_SECONDS = 3600.0
"""A folder that was fetched or found again since then may be about to be read."""

_FOLDER = re.compile(r"m-[0-9a-f]+|[0-9a-f]{64}")
"""Our folders in the cache, which may contain other files."""
_PART, _REMOVED = ".part", ".removed"


def find_folder(cache: Path, model_id: str) -> Path | None:
    """The folder that a logged model was fetched to, which counts as used now; None without one."""
    folder = _linked(cache / model_id)
    if not folder.is_dir():
        return None
    with locked(lock_path(folder)):
        if not folder.is_dir():  # it was removed in between
            return None
        os.utime(folder)
    return folder


def _linked(known: Path) -> Path:
    """The folder that a model's id is a link to, or the id's own path."""
    try:
        return known.with_name(known.readlink().name)
    except OSError:
        return known


def add_folder(
    cache: Path, model_id: str, content: str | None, download: Callable[[Path], Path]
) -> Path:
    """The folder of a logged model, downloaded unless one of that content is there.

    `content` is the hash of its list of checksums, None where it is to lie under its id.
    `download` is given an empty folder and makes one in it; it may raise, and then nothing is left.
    Other callers wait. What a killed process has left is downloaded again.
    """
    folder = cache / (content or model_id)
    cache.mkdir(parents=True, exist_ok=True)
    with locked(lock_path(folder)):
        if not folder.is_dir():
            part = folder.with_name(f".{folder.name}{_PART}")
            shutil.rmtree(part, ignore_errors=True)
            try:
                with raise_disk_full(folder, "free some, or give another --cache"):
                    part.mkdir()
                    whole = download(part)
                    for path in (*whole.rglob("*"), whole):
                        flush_to_disk(path)
                    whole.replace(folder)
                    flush_to_disk(cache)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        os.utime(folder)
        if content is not None:
            _link(cache / model_id, folder)
    return folder


def _link(model_id: Path, folder: Path) -> None:
    if model_id.is_dir() and not model_id.is_symlink():
        return  # an older version of this module has fetched it meanwhile
    link = model_id.with_name(f".{model_id.name}.link")
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(model_id)


def listed_files(checksums: str) -> dict[str, str]:
    """The SHA-256 of each file, by name, of a list of checksums."""
    parts = (line.partition("  ") for line in checksums.splitlines())
    return {Path(name).name: sha256 for sha256, _, name in parts}


def damaged_file(folder: Path, content: str) -> str | None:
    """The first file that differs from the checksums whose hash is `content`; None if all match."""
    listed = folder / CHECKSUMS
    if not listed.is_file() or file_sha256(listed) != content:
        return CHECKSUMS
    for name, sha256 in listed_files(listed.read_text(encoding="utf-8", errors="replace")).items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            return name
    return None


def lock_path(folder: Path) -> Path:
    """The file whose lock is that of a folder, or of a file."""
    return folder.with_name(f".{folder.name}.lock")


def evict(cache: Path, most_bytes: float, unused_seconds: float = UNUSED_SECONDS) -> list[str]:
    """Removes folders until all are no larger together, the longest unused first; names them.

    Stays what a pointer names, and what was fetched or found again within `unused_seconds`. A
    server that answers with a removed version continues: its weights are copied into memory when
    they are loaded, and a file that is mapped stays on Linux until it is unmapped. Raises `OSError`
    for a cache that may not be written.
    """
    _remove_left_overs(cache)
    ours = [path for path in cache.iterdir() if _FOLDER.fullmatch(path.name)]
    sizes = {path: _size(path) for path in ours if not path.is_symlink()}
    excess = sum(sizes.values()) + sum(_size(path) for path in cache.glob(f".*{_PART}"))
    excess -= most_bytes
    removed: list[str] = []
    for folder in sorted(sizes, key=_used_at):
        if excess <= 0:
            break
        if _remove(folder, time.time() - unused_seconds):
            removed.append(folder.name)
            excess -= sizes[folder]
    for path in ours:
        if path.is_symlink() and not path.exists():
            path.unlink(missing_ok=True)
    return removed


def _remove(folder: Path, unused_since: float) -> bool:
    """Removes a folder that was not used since then, has no pointer and no lock."""
    away = folder.with_name(f".{folder.name}.{os.getpid()}{_REMOVED}")
    lock = lock_path(folder)
    try:
        with locked(lock, give_up):
            if _used_at(folder) > unused_since or folder.name in _named(folder.parent):
                return False
            folder.rename(away)  # at once: a crash leaves no part of it that looks like the whole
            lock.unlink()
    except LockTakenError:
        return False
    shutil.rmtree(away, ignore_errors=True)
    return True


def _remove_left_overs(cache: Path) -> None:
    """Removes what killed processes left of folders that they removed or fetched."""
    for path in cache.glob(f".*{_REMOVED}"):
        shutil.rmtree(path, ignore_errors=True)
    for path in cache.glob(f".*{_PART}"):
        lock = lock_path(path.with_name(path.name[1 : -len(_PART)]))
        with suppress(LockTakenError), locked(lock, give_up):
            shutil.rmtree(path, ignore_errors=True)
            lock.unlink()


def _named(cache: Path) -> set[str]:
    paths = [path for path in (cache / POINTERS).glob("*.*") if path.suffix in (".json", ".good")]
    found = [pointer for path in paths if (pointer := read_pointer(path)) is not None]
    return {pointer.folder.resolve().name for pointer in found}


def _used_at(folder: Path) -> float:
    """When a folder was used last, in Unix seconds; infinity for one that is gone."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _size(folder: Path) -> int:
    """The bytes of a folder's files; those that vanish meanwhile have none."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total

"""Atomic writes, locks and hashes: files and folders that are complete or absent.

A full disk is a `DiskFullError` of one line, and leaves no partial file.
"""

import ctypes
import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from bert_core.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ERROR_NUMBER = re.compile(
    r"os error (\d{1,9})|errno (\d{1,9})|\d requested and \d{1,20} written", re.IGNORECASE
)
"""How safetensors, Arrow and numpy say in words what a call to the system gave."""

_WRITERS = ("SafetensorError", "ArrowException", "ArrowInvalid")

_CANNOT_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM)
_HERE, _EXCHANGE, _SWAP = -100, 2, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


class DiskFullError(UserError, OSError):
    """Reports a full disk or an exhausted quota; also the `OSError` that it is."""

    def __init__(self, what: str, where: str, remedy: str) -> None:
        super().__init__(what, where, remedy)
        self.errno, self.strerror = errno.ENOSPC, what

    def __str__(self) -> str:
        """As that of a `UserError`."""
        return str(self.args[0])


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_to_disk(path: Path) -> None:
    """Makes a file or folder survive a power cut, before the rename that publishes it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_full(error: BaseException) -> bool:
    """Tells whether an error means that a disk or quota is full, however it is reported."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (isinstance(error, OSError) or type(error).__name__ in _WRITERS):
        match = _ERROR_NUMBER.search(str(error))
        if match is None:
            return False
        number = int(match[1] or match[2] or errno.ENOSPC)
    return number in _FULL


@contextmanager
def raise_disk_full(path: Path, remedy: str = "free some space, then repeat") -> Iterator[None]:
    """Raises `DiskFullError`, naming the file, where the block fails because the disk is full."""
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise DiskFullError("the disk is full", str(path), remedy) from error


class LockTakenError(Exception):
    """Another process or thread has a lock."""


def give_up() -> NoReturn:
    """Raises `LockTakenError`; for `locked`."""
    raise LockTakenError


@contextmanager
def locked(path: Path, if_taken: Callable[[], object] | None = None) -> Iterator[None]:
    """Holds the lock of a file of its own, which stays empty, against other processes and threads.

    While another has it this waits, or calls `if_taken` again and again, which may wait in its own
    way, or raise (`give_up`). The system releases the lock of a process that ends, however it ends.
    Who has the lock may remove the file; those who waited for it take the lock of a new one.
    """
    while True:
        with path.open("a") as file:
            is_held = _take_lock(file.fileno(), waits=if_taken is None)
            if is_held and _is_at(path, file.fileno()):
                yield
                return
        if not is_held and if_taken is not None:
            if_taken()


def _take_lock(descriptor: int, *, waits: bool) -> bool:
    import fcntl  # not on Windows, where models can be loaded all the same

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path; the file written there replaces `path` when the block ends.

    Readers see the old file or the new one, even after a power cut. If the block raises, the
    temporary file is removed; a full disk raises `DiskFullError`.
    """
    temporary = path.with_name(f".{path.name[:40]}.{uuid4().hex}.written")
    try:
        with raise_disk_full(path):
            yield temporary
            flush_to_disk(temporary)
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Writes a small file of text by `atomic_write`."""
    with atomic_write(path) as beside:
        beside.write_text(text, encoding="utf-8")


def finite(content: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The same content with null for numbers that JSON lacks."""
    if isinstance(content, dict):
        return {str(name): finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def write_sorted_json(path: Path, values: Mapping[str, Any] | list[Any]) -> None:
    """Writes values with their keys in order, so that equal values are equal files."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def replace_folder(written: Path, folder: Path) -> None:
    """Replaces `folder` by a complete, flushed folder next to it.

    Where the file system can, the two change places in one step, and `folder` is there at every
    moment. Elsewhere it takes two, and a kill between them is fixed by `recover`.
    """
    replaced = _replaced(folder)
    if os.path.lexists(folder) and not exchange(written, folder):
        remove(replaced)
        folder.rename(replaced)
    if not os.path.lexists(folder):
        written.rename(folder)
    flush_to_disk(folder.parent)
    remove(written)
    remove(replaced)


def recover(folder: Path, written: Path, is_whole: Callable[[Path], bool]) -> None:
    """Completes a `replace_folder` that was killed: keeps the new folder if complete, else the old.

    Does nothing where the folder is there, or was never.
    """
    replaced = _replaced(folder)
    if os.path.lexists(folder) or not replaced.is_dir():
        return
    try:
        (written if written.is_dir() and is_whole(written) else replaced).rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process has fixed it
            raise


def exchange(first: Path, second: Path) -> bool:
    """Has two names change places at once; False where the system or its disk cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, _SWAP)
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


def remove(path: Path) -> None:
    """Removes a folder, a link or a file, as far as that can be done."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")

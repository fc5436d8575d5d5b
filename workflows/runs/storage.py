"""Where runs lie: a folder, or a URI (`s3://`, `gs://`, `file://`) and a working copy of it here.

In: what follows `--storage`. Out: the storage folder on this machine, and the files at the URI to
read, list and copy. Credentials come from the environment, as pyarrow finds them; pyarrow is
imported when there is a URI.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bert_core.errors import UserError, reason_of

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
    if "://" not in storage:
        return Storage(Path(storage).expanduser().absolute())
    if re.match(r"[^/]*//[^/@]*:[^/@]*@", storage):
        raise UserError(
            "credentials in the storage's address would end up in logs and checkpoints",
            storage.split("://")[0] + "://…",
            "give them in the environment, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3://",
        )
    RemoteFolder(storage).try_writing()
    return Storage(working_copy(storage), storage)


def working_copy(uri: str) -> Path:
    """The folder on this machine that stands for the URI: the same for each start of each run."""
    uri = uri.rstrip("/")
    slug = re.sub(r"[^\w.]+", "-", uri.partition("?")[0])[:48].strip("-")
    digest = hashlib.sha256(uri.encode()).hexdigest()[:8]
    return Path.home() / ".bertline" / "copies" / f"{slug}-{digest}"


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

"""What a writer of folders needs of the disk: a hash of each file, and certainty it is there."""

import hashlib
import os
from pathlib import Path


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

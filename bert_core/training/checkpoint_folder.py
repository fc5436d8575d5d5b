"""Checkpoint folders: their names, and folders that are whole or absent. Loads no torch.

`seal` commits a temporary folder under its final name, checksummed and renamed; `damage` says what
is wrong with one.
"""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from bert_core.disk import file_sha256, flush_to_disk
from bert_core.errors import UserError
from bert_core.strict_files import RESTORE, is_plain_path, read_json_object

MODEL, OPTIMIZER, STATE, FILES = "model.safetensors", "optimizer.safetensors", "state.json", "files"
NEEDED = (MODEL, OPTIMIZER, STATE)
"""Files that the manifest of every checkpoint names."""

_NAME = re.compile(r"step-\d{8,18}")


def checkpoint_name(step: int) -> str:
    """The name of a step's checkpoint folder."""
    return f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint folder, by its name."""
    return int(path.name.removeprefix("step-"))


def is_checkpoint_name(name: str) -> bool:
    """Whether this is what a whole checkpoint is called, not one that is being written."""
    return _NAME.fullmatch(name) is not None


def committed_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints under their final names, newest first."""
    paths = [path for path in folder.glob("step-*") if is_checkpoint_name(path.name)]
    return sorted(paths, key=checkpoint_step, reverse=True)


MANIFEST = "manifest.json"
KEPT = "kept"
"""Marks a checkpoint that another run begins with: `save_checkpoint` does not remove it."""

FORMAT_VERSION = 1
TEMPORARY, DELETING = ".tmp-", ".deleting"


def temporary_folder(final: Path) -> Path:
    """Creates a fresh folder in the file system of `final`, so that a rename can commit it."""
    temporary = final.with_name(f"{final.name}{TEMPORARY}{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def seal(temporary: Path, final: Path) -> None:
    """Commits `temporary` as `final`: sizes and hashes last, everything on disk before the rename.

    A power cut or a kill at any moment leaves `final` whole or absent.
    """
    paths = sorted(path for path in temporary.rglob("*") if path.is_file())
    files = {str(path.relative_to(temporary)): _describe(path) for path in paths}
    manifest = {"format_version": FORMAT_VERSION, "files": files}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    folders = [path for path in temporary.rglob("*") if path.is_dir()]
    for path in [*paths, temporary / MANIFEST, *folders, temporary]:
        flush_to_disk(path)
    temporary.rename(final)
    flush_to_disk(final.parent)


def sealed_files(folder: Path) -> dict[str, dict[str, str | int]]:
    """Hash and size of each file by its name, as the manifest has them.

    Raises `UserError` for a manifest that is missing, damaged, empty, of another version, or names
    files elsewhere.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{MANIFEST} is missing", str(folder), RESTORE)
    try:
        manifest = read_json_object(path)
        version, files = manifest["format_version"], dict(manifest["files"])
        described = {
            name: {"sha256": str(entry["sha256"])[:64], "bytes": int(entry["bytes"])}
            for name, entry in files.items()
        }
    except (UserError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{MANIFEST} cannot be read", str(folder), RESTORE) from error
    if version != FORMAT_VERSION:
        what = f"format version {str(version)[:30]}, this program reads {FORMAT_VERSION}"
        raise UserError(what, str(folder), RESTORE)
    if not described:
        raise UserError(f"{MANIFEST} names no file", str(folder), RESTORE)
    outside = next((name for name in described if not is_plain_path(name)), None)
    if outside is not None:
        raise UserError(f"{MANIFEST} names {outside[:60]!r}", str(folder), RESTORE)
    return described


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words, or None when every byte is right.

    So it is only if the manifest names all the files that are `NEEDED`.
    """
    try:
        files = sealed_files(folder)
    except UserError as error:
        return error.what
    lacking = next((name for name in NEEDED if name not in files), None)
    if lacking is not None:
        return f"{MANIFEST} lacks {lacking}"
    for name, expected in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
        if _describe(path) != expected:
            return f"{name} does not match its checksum"
    return None


def keep(folder: Path) -> None:
    """Marks a checkpoint as one that stays, where this process may write there."""
    with suppress(OSError):
        (folder / KEPT).touch()


def remove(folder: Path) -> None:
    """Deletes a sealed folder; a kill in between leaves nothing that looks like one."""
    doomed = folder.with_name(folder.name + DELETING)
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path) -> list[str]:
    """Deletes what killed writers left in `parent`, and returns the names.

    Only for the one process that writes there: a live writer's temporary folder goes too.
    """
    leftovers = [
        path
        for path in sorted(parent.glob("*"))
        if path.is_dir() and (TEMPORARY in path.name or path.name.endswith(DELETING))
    ]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in leftovers]


def _describe(path: Path) -> dict[str, str | int]:
    return {"sha256": file_sha256(path), "bytes": path.stat().st_size}

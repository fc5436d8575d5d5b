"""Checkpoint folders: their names, and whole or absent."""

import json
import os

import pytest

from bert_core.training.checkpoint_folder import (
    MANIFEST,
    checkpoint_name,
    checkpoint_step,
    committed_checkpoints,
    damage,
    remove,
    remove_leftovers,
    seal,
    temporary_folder,
)


def test_committed_ones_come_newest_first_by_their_step(tmp_path):
    steps = [99_999_999, 5, 100_000_000]
    assert checkpoint_name(40) == "step-00000040"
    names = [checkpoint_name(step) for step in steps]
    for name in [*names, "step-00000006.tmp-12", "step-00000007.deleting", "step-8", "other"]:
        (tmp_path / name).mkdir()
    assert [checkpoint_step(path) for path in committed_checkpoints(tmp_path)] == sorted(
        steps, reverse=True
    )
    assert committed_checkpoints(tmp_path / "absent") == []


@pytest.fixture
def sealed(tmp_path):
    temporary = temporary_folder(tmp_path / "thing")
    (temporary / "inner").mkdir()
    (temporary / "inner" / "a.bin").write_bytes(bytes(range(200)))
    (temporary / "b.txt").write_text("words")
    seal(temporary, tmp_path / "thing")
    return tmp_path / "thing"


def test_a_sealed_folder_is_whole_and_nothing_else_is_left(sealed):
    assert damage(sealed) is None
    assert [path.name for path in sealed.parent.iterdir()] == ["thing"]
    manifest = json.loads((sealed / "manifest.json").read_text())
    assert manifest["files"].keys() == {"inner/a.bin", "b.txt"}
    assert manifest["files"]["b.txt"]["bytes"] == 5


def test_every_single_flipped_byte_is_found(sealed):
    for name in ("inner/a.bin", "b.txt"):
        content = (sealed / name).read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 0x80
            (sealed / name).write_bytes(changed)
            assert damage(sealed) == f"{name} does not match its checksum"
        (sealed / name).write_bytes(content)
    assert damage(sealed) is None


def test_a_missing_folder_is_damaged_and_a_removed_one_is_gone(sealed):
    remove(sealed)
    assert list(sealed.parent.iterdir()) == []
    assert damage(sealed) == "manifest.json is missing"


def test_leftovers_of_killed_writers_are_removed_and_named(sealed):
    (sealed.parent / "thing.tmp-123").mkdir()
    (sealed.parent / "old.deleting").mkdir()
    (sealed.parent / "file.tmp-1").write_text("not a folder")
    assert remove_leftovers(sealed.parent) == ["old.deleting", "thing.tmp-123"]
    assert sorted(path.name for path in sealed.parent.iterdir()) == ["file.tmp-1", "thing"]
    assert temporary_folder(sealed).name == f"thing.tmp-{os.getpid()}"


ENTRY = {"sha256": "0" * 64, "bytes": 1}


@pytest.mark.parametrize(
    "files",
    [
        {},
        [],
        None,
        "a",
        {"a": None},
        {"a": {}},
        {"a": {"sha256": "0", "bytes": []}},
        {"a": {"sha256": "0", "bytes": float("nan")}},
        {"../final/a": ENTRY},
        {"/etc/passwd": ENTRY},
        {"below/../a": ENTRY},
        {"a\\b": ENTRY},
        {"nul\0": ENTRY},
        {"": ENTRY},
        {".": ENTRY},
    ],
)
def test_a_manifest_that_is_not_whole_is_damage(sealed, files):
    manifest = sealed / MANIFEST
    manifest.write_text(json.dumps({"format_version": 1, "files": files}))
    assert damage(sealed)


def test_a_manifest_has_to_name_what_is_needed(sealed):
    assert damage(sealed, needed=["b.txt", "c"]) == "manifest.json lacks c"
    manifest = sealed / MANIFEST
    content = json.loads(manifest.read_text())
    del content["files"]["b.txt"]
    manifest.write_text(json.dumps(content))
    assert damage(sealed) is None
    assert damage(sealed, needed=["b.txt"]) == "manifest.json lacks b.txt"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["folder", "fifo", "endless", "link"])
def test_what_is_no_file_of_the_folder_is_damage(sealed, tmp_path, kind):
    path = sealed / "b.txt"
    path.rename(tmp_path / "outside")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "endless" else tmp_path / "outside")
    assert damage(sealed) == "b.txt is missing"

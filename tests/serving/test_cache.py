"""The cache of fetched models: what lies where, what is removed, and what may come in between."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from running import repeating

from bert_core.disk import file_sha256, locked
from bert_core.lineage import Lineage
from bert_core.model_folder import CHECKSUMS as WRITTEN_CHECKSUMS
from bert_core.model_folder import publish_folder
from serving.models import close_models, load_models, warm_up
from serving.rollout.aliases import (
    Address,
    Pointer,
    last_good_path,
    pointer_path,
    switch_pointer,
)
from serving.rollout.cache import (
    CHECKSUMS,
    add_folder,
    damaged_file,
    evict,
    find_folder,
    lock_path,
)

STORE = "http://mlflow:5000"
SIZE = 1000


def written(folder, content):
    """A folder of some bytes with its list, and the hash of that."""
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(content * SIZE)
    publish_folder(folder, folder.with_name("whole"))
    return folder.with_name("whole"), file_sha256(folder.with_name("whole") / CHECKSUMS)


def download_of(content, calls):
    """What brings a folder of some bytes, and notes that it was called."""

    def download(beside):
        calls.append(content)
        return written(beside / "model", content)[0]

    return download


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def put(cache, tmp_path):
    """Puts folders of some bytes into the cache, used so many seconds ago."""

    def put_one(number, content, seconds_ago=0.0):
        _, sha256 = written(tmp_path / f"{number}" / "source", content)
        folder = add_folder(cache, f"m-{number}", sha256, download_of(content, []))
        used_at = time.time() - seconds_ago
        os.utime(folder, (used_at, used_at))
        return folder

    return put_one


def point(cache, alias, folder):
    """Has an address stand for a folder; its pointer and where that lies."""
    pointer = Pointer(
        address=f"models:/cats@{alias}",
        name="cats",
        version=1,
        alias=alias,
        folder=folder,
        tracking_uri=STORE,
        lineage=Lineage(),
    )
    path = pointer_path(cache, Address("cats", alias, None), STORE)
    switch_pointer(path, pointer)
    return pointer, path


def visible(cache):
    return {path.name for path in cache.iterdir() if path.name[0] != "."}


def test_what_has_the_same_content_is_downloaded_once(cache, tmp_path):
    assert CHECKSUMS == WRITTEN_CHECKSUMS
    _, sha256 = written(tmp_path / "source", b"a")
    calls = []
    first = add_folder(cache, "m-1", sha256, download_of(b"a", calls))
    assert add_folder(cache, "m-2", sha256, download_of(b"a", calls)) == first
    assert calls == [b"a"] and first.name == sha256 and damaged_file(first, sha256) is None
    assert visible(cache) == {sha256, "m-1", "m-2"}
    os.utime(first, (0, 0))
    moved = cache.rename(tmp_path / "elsewhere")
    assert find_folder(moved, "m-1") == find_folder(moved, "m-2") == moved / sha256
    assert time.time() - (moved / sha256).stat().st_mtime < 60, "it was found again"

    unlisted = add_folder(moved, "m-3", None, download_of(b"b", calls))
    assert unlisted == moved / "m-3" == find_folder(moved, "m-3") and not unlisted.is_symlink()
    assert find_folder(moved, "m-4") is None


def test_a_download_that_fails_leaves_nothing(cache):
    def download(beside):
        (beside / "model").mkdir()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        add_folder(cache, "m-1", "0" * 64, download)
    assert [path.name for path in cache.iterdir()] == [f".{'0' * 64}.lock"]


@pytest.mark.parametrize("name", ["weights", CHECKSUMS])
def test_what_came_otherwise_is_found(tmp_path, name):
    whole, sha256 = written(tmp_path / "source", b"a")
    assert damaged_file(whole, sha256) is None
    path = whole / name
    content = path.read_bytes()
    for other in (content[:-1], content[:-1] + b"!"):
        path.write_bytes(other)
        assert damaged_file(whole, sha256) == name
    path.unlink()
    assert damaged_file(whole, sha256) == name


def test_the_longest_unused_go_first_until_the_rest_fits(cache, put):
    # Not in the order of their names, which are hashes: a < b.
    contents = (b"a", b"b", b"c", b"d", b"e", b"f")
    seconds = (80, 70, 90, 90, 50, 90)
    folders = [
        put(number, *each) for number, each in enumerate(zip(contents, seconds, strict=True))
    ]
    older, old, named, good, recent, held = folders
    assert old.name < older.name
    pointer, path = point(cache, "champion", named)
    switch_pointer(last_good_path(path), replace_folder(pointer, good))
    foreign = cache / "my own things"
    foreign.mkdir()
    (foreign / "large").write_bytes(bytes(100 * SIZE))
    each = sum(path.stat().st_size for path in old.iterdir())
    assert evict(cache, 6 * each, 60) == []
    with locked(lock_path(held)):
        assert evict(cache, 5.5 * each, 60) == [older.name]
        assert evict(cache, 0, 60) == [old.name], "the others are named, recent or held"
    assert not older.exists() and named.exists() and good.exists() and recent.exists()
    assert evict(cache, 0, 60) == [held.name]
    assert evict(cache, 0, 0) == [recent.name]
    assert visible(cache) == {named.name, good.name, "m-2", "m-3", "pointers", foreign.name}
    hidden = {each.name for each in cache.iterdir() if each.name[0] == "."}
    assert hidden == {f".{named.name}.lock", f".{good.name}.lock"}


def replace_folder(pointer, folder):
    return pointer.model_copy(update={"folder": folder})


def test_what_killed_processes_have_left_is_removed(cache, put):
    kept = put(1, b"a")
    for name in (f".{'1' * 64}.17.removed", f".{'2' * 64}.part", ".m-3.part"):
        (cache / name).mkdir()
        (cache / name / "weights").write_bytes(b"a part")
    with locked(lock_path(cache / "m-3")):
        assert evict(cache, 1 << 40) == []
        assert {path.name for path in cache.iterdir()} >= {".m-3.part"}, "it is being fetched"
    evict(cache, 1 << 40)
    assert {path.name for path in cache.iterdir()} == {kept.name, f".{kept.name}.lock", "m-1"}


def test_who_waits_for_what_is_being_removed_fetches_it_again(cache, put):
    folder, calls = put(1, b"a"), []
    again = threading.Thread(
        target=add_folder, args=(cache, "m-1", folder.name, download_of(b"a", calls))
    )
    with locked(lock_path(folder)):
        again.start()
        again.join(0.2)
        assert again.is_alive() and not calls
        folder.rename(cache / f".{folder.name}.1.removed")
        (cache / f".{folder.name}.lock").unlink()
    again.join(10)
    assert calls == [b"a"] and damaged_file(folder, folder.name) is None
    assert (cache / f".{folder.name}.lock").exists(), "it had the lock of now, not the removed one"


def test_what_is_fetched_and_removed_at_once_is_whole_or_not_there(cache, put):
    folder, calls, wrong, removed = put(1, b"a"), [], [], 0

    def fetch():
        try:
            find_folder(cache, "m-1") or add_folder(
                cache, "m-1", folder.name, download_of(b"a", calls)
            )
            with locked(lock_path(folder)):
                if folder.exists() and damaged_file(folder, folder.name):
                    wrong.append("a part")
        except Exception as error:  # noqa: BLE001 - it is told below
            wrong.append(error)

    with repeating(fetch, 3):
        began = time.monotonic()
        # A second, and longer where the machine is busy.
        while time.monotonic() - began < (1 if removed > 1 else 60):
            removed += len(evict(cache, 0, -1))
    assert not wrong and removed > 1 and len(calls) >= removed - 1


def test_a_model_whose_folder_is_removed_goes_on_to_answer(small_models, tmp_path):
    folder = shutil.copytree(small_models["sentiment"], tmp_path / "model")
    models = load_models({"mood": folder})
    shutil.rmtree(folder)
    assert str(folder) not in Path("/proc/self/maps").read_text(), "the weights are a copy"
    warm_up(models["mood"])
    close_models(list(models.values()))

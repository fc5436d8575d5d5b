import errno
import hashlib
import math
import pickle
import subprocess
import sys

import pytest

from bert_core import disk
from bert_core.disk import (
    DiskFullError,
    atomic_write,
    exchange,
    file_sha256,
    finite,
    flush_to_disk,
    is_disk_full,
    locked,
    recover,
    replace_folder,
)
from bert_core.errors import UserError, nearest, one_line


def test_the_hash_is_that_of_the_bytes_on_disk(tmp_path):
    path = tmp_path / "file"
    content = bytes(range(256)) * 5000
    path.write_bytes(content)
    assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    path.write_bytes(content[:-1])
    assert file_sha256(path) != hashlib.sha256(content).hexdigest()


def test_files_and_folders_are_flushed_and_what_is_missing_is_not(tmp_path):
    (tmp_path / "file").write_text("text")
    flush_to_disk(tmp_path / "file")
    flush_to_disk(tmp_path)
    with pytest.raises(FileNotFoundError):
        flush_to_disk(tmp_path / "missing")


HOLDER = """
import sys, time
from pathlib import Path
from bert_core.disk import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_is_of_one_process_until_it_ends(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE) as holder:
        asked = []

        def kill_at_the_third() -> None:
            asked.append(holder.poll())
            if len(asked) == 3:
                holder.kill()
                holder.wait()

        try:
            assert holder.stdout.readline() == b"held\n"
            with locked(path, kill_at_the_third):
                assert asked == [None] * 3
        finally:
            holder.kill()
    with locked(path):  # a block that has ended does not hold it
        pass


def test_who_finds_a_lock_taken_may_give_up_and_leaves_it_held(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), locked(path, lambda: 1 / 0):
                pytest.fail("two have it")
    with locked(path, lambda: pytest.fail("nobody has it")):
        pass


def test_a_full_disk_is_a_user_error_and_an_os_error():
    error = pickle.loads(pickle.dumps(DiskFullError("the disk is full", "a", "free some")))
    assert isinstance(error, UserError) and isinstance(error, OSError)
    assert str(error) == "the disk is full: a (free some)"
    assert (error.errno, error.where) == (errno.ENOSPC, "a")
    assert is_disk_full(error)


def test_a_file_is_replaced_at_once_or_not(tmp_path):
    path = tmp_path / "file"
    for content in ("one", "two"):
        with atomic_write(path) as beside:
            beside.write_text(content)
            assert not path.exists() or path.read_text() != content
        assert path.read_text() == content
    with pytest.raises(KeyError), atomic_write(path) as beside:
        beside.write_text("three")
        raise KeyError
    assert path.read_text() == "two"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_names_as_long_as_a_disk_takes_them(tmp_path):
    path = tmp_path / ("é" * 120)
    with atomic_write(path) as beside:
        beside.write_text("x")
    assert path.read_text() == "x"


def made(folder, content):
    folder.mkdir(parents=True)
    (folder / "file").write_text(content)
    return folder


def test_two_names_change_places(tmp_path):
    one, two = made(tmp_path / "one", "1"), made(tmp_path / "two", "2")
    assert exchange(one, two)  # as every local file system of Linux and macOS can
    assert ((one / "file").read_text(), (two / "file").read_text()) == ("2", "1")
    with pytest.raises(OSError):
        exchange(one, tmp_path / "missing")


@pytest.fixture(params=["at once", "in two steps"])
def steps(request, monkeypatch):
    """Both ways of replacing a folder; the second is that of file systems that know no exchange."""
    if request.param == "in two steps":
        monkeypatch.setattr(disk, "exchange", lambda *_: False)


@pytest.mark.parametrize("before", ["nothing", "folder", "link", "file"])
def test_a_folder_takes_the_place_of_another(tmp_path, steps, before):
    final, written = tmp_path / "final", made(tmp_path / ".final.written", "new")
    if before == "folder":
        made(final, "old")
    elif before == "link":
        final.symlink_to(made(tmp_path / "elsewhere", "old"))
    elif before == "file":
        final.write_text("old")
    replace_folder(written, final)
    assert (final / "file").read_text() == "new"
    left = {each.name for each in tmp_path.iterdir()} - {"final", "elsewhere"}
    assert not left
    if before == "link":
        assert (tmp_path / "elsewhere" / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("there", "is_whole", "expected"),
    [
        ({"final": "old", ".final.replaced": "older", ".final.written": "new"}, True, "old"),
        ({".final.replaced": "old", ".final.written": "new"}, True, "new"),
        ({".final.replaced": "old", ".final.written": "new"}, False, "old"),
        ({".final.replaced": "old"}, True, "old"),
        ({".final.written": "new"}, True, None),
        ({}, True, None),
    ],
)
def test_what_a_kill_has_left_is_mended(tmp_path, there, is_whole, expected):
    for name, content in there.items():
        made(tmp_path / name, content)
    final = tmp_path / "final"
    recover(final, tmp_path / ".final.written", lambda _: is_whole)
    assert (final / "file").read_text() == expected if expected else not final.exists()


class MissingText(UserError):
    """As a module may derive its own."""


def test_an_error_is_one_line_of_three_parts():
    error = UserError("no such file", "a.txt", "give a path")
    assert str(error) == "no such file: a.txt (give a path)"
    assert (error.what, error.where, error.remedy) == ("no such file", "a.txt", "give a path")


def test_an_error_crosses_process_borders_whole():
    error = pickle.loads(pickle.dumps(MissingText("no text", "a folder", "add some")))
    assert type(error) is MissingText
    assert str(error) == "no text: a folder (add some)"
    assert error.remedy == "add some"


def test_json_has_no_infinities():
    assert finite({"a": [1.5, math.nan], 2: (math.inf,), "c": "text"}) == {
        "a": [1.5, None], "2": [None], "c": "text"
    }  # fmt: skip


def test_the_nearest_name():
    assert nearest("tempates", ["templates", "examples"]) == ", did you mean templates"
    assert nearest("xyz", ["templates"]) == ""
    assert nearest("templates" * 1_000_000, ["templates"]) == ""  # and takes no time
    assert nearest("lost", {"second_to_last": 1, "last": 2}) == ", did you mean last"
    fields = ["oven.degrees", "oven.minutes", "flour"]
    assert nearest("oven.degres", fields) == ", did you mean oven.degrees"
    assert nearest("minute", fields) == ", did you mean oven.minutes"


def test_a_text_of_any_origin_is_printed_on_one_line():
    assert one_line("a\nb\tc") == "a b c"
    assert one_line("\x1b[31m\0\u202e\ud800") == r"\x1b[31m\x00\u202e\ud800"
    assert one_line("Zoë 中文 👨\u200d👩\u200d👧") == "Zoë 中文 👨\u200d👩\u200d👧"
    assert "\n" not in str(UserError("unknown label", "a\nb", "the model knows c\nd"))


def test_a_message_is_one_line_whatever_a_file_has_put_into_it():
    error = UserError("a label a\nb", f"a\r\u2028{'x' * 10_000}", "mend \ud800 it")
    assert len(str(error)) < 2100 and len(str(error).splitlines()) == 1
    str(UserError("a", "b", "\ud800")).encode()


def test_of_parts_that_are_too_long_the_others_are_still_said():
    error = UserError("no \x1b" * 10**6, f"{'a/' * 10**6}config.json", "restore the file")
    assert len(str(error)) < 2100
    assert str(error).startswith("no \\x1b")
    assert str(error).endswith("config.json (restore the file)")

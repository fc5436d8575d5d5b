"""`python -m serving.new_key`: a key on standard output, its hash in the file."""

import multiprocessing
import os
import stat
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from bert_core.errors import UserError
from serving.keys import add_key, read_keys
from serving.new_key import main


def test_a_key_is_made(tmp_path, capsys):
    path = tmp_path / "keys.json"
    asked = ["ann", "--file", str(path), "--scope", "predict", "--scope", "admin"]
    assert main([*asked, "--tokens_per_minute", "600"]) == 0
    key = capsys.readouterr().out.strip()
    record = read_keys(path).find(key).record
    assert (record.name, record.scopes, record.tokens_per_minute) == (
        "ann", ("predict", "admin"), 600,
    )  # fmt: skip


@pytest.mark.parametrize("more", [[], ["--tokens_per_minute", "0"]])
def test_what_is_wrong_is_one_line(tmp_path, capsys, more):
    path = tmp_path / "keys.json"
    if not more:
        path.write_text("[]")
    assert main(["ann", "--file", str(path), *more]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert not captured.out


def make_keys(path, names):
    """The keys of these names, and None for those that are taken."""
    found = {}
    for name in names:
        try:
            found[name] = add_key(path, name, ["predict"], None)
        except UserError:
            found[name] = None
    return found


def crash_in_between(path):
    """As where the process is killed when it was about to put the new file in its place."""
    Path.replace = lambda *_: os._exit(9)
    add_key(path, "lost", ["predict"], None)


def test_of_many_that_are_made_at_once_none_is_lost(tmp_path):
    path = tmp_path / "keys.json"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(8, mp_context=spawn) as pool:
        names = [[f"{number}-{turn}" for turn in range(25)] + ["shared"] for number in range(8)]
        made = list(pool.map(partial(make_keys, path), names))
    keys = read_keys(path)
    assert len(keys.records) == 8 * 25 + 1
    assert sum(each["shared"] is not None for each in made) == 1
    for each in made:
        for name, key in each.items():
            assert key is None or keys.find(key).name == name
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_killed_one_leaves_is_no_harm(tmp_path):
    path = tmp_path / "keys.json"
    first = add_key(path, "first", ["predict"], None)
    killed = multiprocessing.get_context("spawn").Process(target=crash_in_between, args=(path,))
    killed.start()
    killed.join()
    assert killed.exitcode == 9 and [each.name for each in read_keys(path).records] == ["first"]
    second = add_key(path, "second", ["predict"], None)
    assert read_keys(path).find(first) and read_keys(path).find(second)
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]


def test_a_file_behind_a_link_stays_behind_it(tmp_path):
    (tmp_path / "secrets").mkdir()
    link = tmp_path / "keys.json"
    link.symlink_to(tmp_path / "secrets" / "keys.json")
    for name in ("a", "b"):
        add_key(link, name, ["predict"], None)
    assert link.is_symlink() and len(read_keys(link).records) == 2


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, capsys):
    assert main(["ann", "--file", str(tmp_path / "nowhere" / "keys.json")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: no key is made") and captured.err.count("\n") == 1

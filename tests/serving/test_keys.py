"""API keys: the file, the command that makes one, and their rate limits."""

import multiprocessing
import os
import stat
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from bert_core.errors import UserError
from serving.keys import (
    Key,
    KeyRecord,
    Keys,
    RateLimitError,
    TokenBucket,
    add_key,
    hash_of,
    read_keys,
)
from serving.new_key import main


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path):
    path = tmp_path / "keys.json"
    first = add_key(path, "ann", ["predict"], None)
    second = add_key(path, "bob", ["predict", "admin"], 600)
    assert first not in path.read_text() and first != second and len(first) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = read_keys(path)
    assert keys.find(first).name == "ann"
    assert keys.find(second).record.scopes == ("predict", "admin")
    for wrong in ("", first[:-1], f"{first} ", "é\udc00"):
        assert keys.find(wrong) is None
    assert [each.name for each in path.parent.iterdir()] == ["keys.json"]
    with pytest.raises(UserError, match="ann"):
        add_key(path, "ann", ["admin"], None)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{}",
        '{"keys": []}',
        '{"keys": [{"name": "a", "sha256": "12"}]}',
        '{"keys": [{"name": "a", "key": "secret-one"}]}',
    ],
)
def test_a_file_that_has_no_keys_is_named_and_not_repeated(tmp_path, content):
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as told:
        read_keys(path)
    assert str(path) in str(told.value) and "secret-one" not in str(told.value)
    assert "\n" not in str(told.value)


def test_two_keys_of_one_name_are_refused(tmp_path):
    path = tmp_path / "keys.json"
    record = KeyRecord(name="a", sha256=hash_of("b")).model_dump_json()
    path.write_text(f'{{"keys": [{record}, {record}]}}')
    with pytest.raises(UserError, match="two keys"):
        read_keys(path)


def test_those_with_a_limit_have_tokens_and_the_others_no_end():
    limited = KeyRecord(name="a", sha256=hash_of("b"), tokens_per_minute=60)
    unlimited = KeyRecord(name="c", sha256=hash_of("d"))
    buckets = Keys([limited, unlimited]).buckets
    assert {name: bucket.per_minute for name, bucket in buckets.items()} == {"a": 60}
    for _ in range(10):
        Key(unlimited).pay(1 << 40)
    assert Keys([]).find("a") is None


def test_tokens_are_used_up_and_come_back():
    bucket = TokenBucket(6000)
    bucket.pay(5900)
    bucket.pay(120)  # a debt of 20, which is a fifth of a second
    with pytest.raises(RateLimitError) as told:
        bucket.pay(1)
    assert 0 < told.value.retry_after <= 0.21
    time.sleep(told.value.retry_after + 0.02)
    bucket.pay(1)


def test_one_that_stands_for_several_knows_what_each_has_taken():
    whole, first, second = (TokenBucket(60) for _ in range(3))
    first.pay(50)
    second.pay(30)
    for each in (first, second):
        each.correct(whole.settle(each.take_paid()))
    with pytest.raises(RateLimitError):
        second.pay(1)  # 20 are owed, as it was told last
    first.pay(1)  # was told before that 10 are left
    assert first.take_paid() == 1 and second.take_paid() == 0


def test_what_is_paid_while_they_agree_counts_once():
    whole, mine = TokenBucket(60), TokenBucket(60)
    mine.pay(20)
    paid = mine.take_paid()
    mine.pay(30)  # meanwhile
    mine.correct(whole.settle(paid))
    mine.pay(9)
    assert mine.take_paid() == 39
    mine.pay(2)  # 1 is left
    with pytest.raises(RateLimitError):
        mine.pay(1)


def test_what_could_not_be_told_is_told_another_time():
    bucket = TokenBucket(60)
    bucket.pay(20)
    bucket.put_back(bucket.take_paid())
    bucket.pay(1)
    assert bucket.take_paid() == 21


def test_a_key_is_made(tmp_path, capsys):
    path = tmp_path / "keys.json"
    asked = ["ann", "--file", str(path), "--scope", "predict", "--scope", "admin"]
    assert main([*asked, "--tokens_per_minute", "600"]) == 0
    key = capsys.readouterr().out.strip()
    record = read_keys(path).find(key).record
    assert (record.name, record.scopes, record.tokens_per_minute) == (
        "ann", ("predict", "admin"), 600,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file", "more", "named"),
    [
        ("ann", "wrong.json", [], "wrong.json"),
        ("ann", "nowhere/keys.json", [], "nowhere"),
        ("ann", "keys.json", ["--tokens_per_minute", "0"], "--tokens_per_minute is 0, at least 1"),
        ("ann", "keys.json", ["--tokens_per_minute", "-7"], "--tokens_per_minute is -7"),
        ("", "keys.json", [], "name"),
        (" ", "keys.json", [], "name"),
        ("ann\nbob", "keys.json", ["--tokens_per_minute", "0"], "name"),
        ("ann\x1b[1m", "keys.json", [], "name"),
        ("ann\udc80", "keys.json", [], "name"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, capsys, name, file, more, named):
    (tmp_path / "wrong.json").write_text("[]")
    assert main([name, "--file", str(tmp_path / file), *more]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert named in captured.err and captured.err.strip().isprintable()
    assert not captured.out and [each.name for each in tmp_path.iterdir()] == ["wrong.json"]


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
    with ProcessPoolExecutor(3, mp_context=spawn) as pool:
        names = [[f"{number}-{turn}" for turn in range(25)] + ["shared"] for number in range(3)]
        made = list(pool.map(partial(make_keys, path), names))
    keys = read_keys(path)
    assert len(keys.records) == 3 * 25 + 1
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
    assert killed.exitcode == 9 and [record.name for record in read_keys(path).records] == ["first"]
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

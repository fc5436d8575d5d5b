import getpass
import platform

import pytest

from workflows.promotion.history import (
    HISTORY_TAG,
    Entry,
    history_table,
    next_key,
    read_entries,
    tag_of,
    user_and_host,
    utc_now,
    version_before,
)


def entry(before, after, action="promote", state="done", **changes):
    given = {"who": "ada@box", "when": "2026-11-23 09:31:05", "why": "", "gate": ""} | changes
    return Entry(action=action, state=state, before=before, after=after, **given)


def back(before, after):
    return entry(before, after, "rollback")


def test_an_entry_is_written_and_read_in_order():
    tags = {"other": "tag", f"{HISTORY_TAG}x": "{}", f"{HISTORY_TAG}000009": "not JSON"}
    first, second = entry(None, 1, why="ü"), entry(1, 2, state="refused", gate="failed 1 of 2: f1")
    for number, each in ((10, first), (11, second)):
        key = next_key(tags, "0123456789abcdef")
        assert key == f"{HISTORY_TAG}{number:06d}-01234567"
        tags[key] = tag_of(each)
    assert list(read_entries(tags).values()) == [first, second]
    assert next_key({}, "0123456789") == f"{HISTORY_TAG}000001-01234567"


def test_an_entry_fits_into_a_tag_of_any_mlflow():
    longest = entry(123456, 123457, why="w" * 1000, gate="g" * 2500, who="u" * 64 + "@" + "h" * 255)
    assert len(tag_of(longest)) < 5000


def test_the_alias_tells_what_became_of_a_promotion_that_was_killed():
    moving = entry(1, 2, state="moving")
    assert moving.settled(2).state == "done"
    assert moving.settled(1).state == moving.settled(None).state == "interrupted"
    assert entry(1, 2, state="refused").settled(2).state == "refused"


@pytest.mark.parametrize(
    ("entries", "champion", "expected"),
    [
        ([], None, None),
        ([], 1, None),
        ([entry(None, 1)], 1, None),
        ([entry(None, 1), entry(1, 2)], 2, 1),
        ([entry(3, 4)], 4, 3),
        ([entry(None, 1), entry(1, 2), entry(2, 3)], 3, 2),
        ([entry(None, 1), entry(1, 2), entry(2, 3), back(3, 2)], 2, 1),
        ([entry(None, 1), entry(1, 2), entry(2, 3), back(3, 2), back(2, 1)], 1, None),
        ([entry(None, 1), entry(1, 2), back(2, 1), entry(1, 3)], 3, 1),
        ([entry(None, 1), entry(1, 2), entry(2, 1)], 1, 2),
        ([entry(None, 1), entry(1, 2, state="refused"), entry(1, 3)], 3, 1),
        ([entry(None, 1), entry(1, 2, state="interrupted")], 1, None),
        ([entry(None, 1), entry(1, 2)], 4, 2),  # 4 was set by hand
        ([entry(None, 1), entry(1, 2)], None, 2),  # the alias was removed by hand
        ([entry(None, 1), entry(5, 2)], 2, 5),  # 5 was set by hand, and noticed
        ([entry(None, 1), entry(1, 7), entry(7, 2)], 2, 1),  # 7 was deleted
    ],
)
def test_the_version_before(entries, champion, expected):
    assert version_before(entries, champion, {1, 2, 3, 4, 5}) == expected


def test_who_and_when():
    assert user_and_host() == f"{getpass.getuser()}@{platform.node()}"
    assert len(utc_now()) == len("2026-11-23 09:31:05")


def test_a_user_without_a_name(monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    assert user_and_host() == f"unknown@{platform.node()}"


def test_the_table_says_what_happened():
    entries = [
        entry(None, 1, why="first"),
        entry(1, 2, state="refused", gate="failed 9 of 9: " + "a metric, " * 20),
        entry(1, 2, state="interrupted"),
        back(2, 1),
    ]
    titles, *lines = history_table(entries)
    what = titles.index("what")
    expected = ["promoted", "promote: refused", "promote: interrupted", "rolled back"]
    assert [line[what] for line in lines] == expected
    assert lines[0][titles.index("from")] == "none" and lines[0][-1] == "first"
    assert len(lines[1][titles.index("gate")]) <= 60

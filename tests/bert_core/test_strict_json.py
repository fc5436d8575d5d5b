import json
import os

import pytest

from bert_core.errors import UserError
from bert_core.strict_json import (
    MAX_DEPTH,
    is_plain_name,
    is_plain_path,
    parse_json,
    read_bounded,
    read_json,
    read_json_object,
)


class OtherError(UserError):
    pass


@pytest.mark.parametrize(
    "value", [{}, [], None, 1.5, "é", {"a": [1, {"b": "𝄞"}]}, {"a": 2**70}, [1e308]]
)
def test_what_is_json_is_read(tmp_path, value):
    for ensure_ascii in (True, False):
        path = tmp_path / "file.json"
        path.write_text(json.dumps(value, ensure_ascii=ensure_ascii), encoding="utf-8")
        assert read_json(path) == value


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1,]",
        b'{"a": 1, "a": 1}',
        b"NaN",
        b'{"a": -Infinity}',
        b"1e400",
        b"9" * 5000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\uDC00 \\ud834\\udd1e"',
        b'{"\\udfff": 1}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"{} {}",
    ],
)
def test_what_is_none_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(OtherError, match=r"file\.json") as caught:
        read_json(path, error=OtherError)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_depth_at_the_bound_is_read():
    value = parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "here")
    assert str(value) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


def test_whole_pairs_of_surrogates_are_characters():
    assert parse_json(b'"\\ud834\\udd1e"', "here") == "𝄞"


def test_own_files_may_have_numbers_that_are_none(tmp_path):
    path = tmp_path / "file.json"
    path.write_text('{"score": NaN}')
    assert read_json_object(path, allow_nan=True)["score"] != 0
    with pytest.raises(UserError, match="NaN"):
        read_json_object(path)


@pytest.mark.parametrize("value", ["[]", "null", "1", '"a"', "true"])
def test_an_object_is_asked_for(tmp_path, value):
    path = tmp_path / "file.json"
    path.write_text(value)
    with pytest.raises(UserError, match="no JSON object but"):
        read_json_object(path)


@pytest.mark.timeout(30)
def test_a_file_that_need_not_be_there_is_no_link_into_nothing(tmp_path):
    path = tmp_path / "settings.json"
    assert read_json_object(path, is_optional=True) == {}
    path.symlink_to(tmp_path / "a file that was removed")
    with pytest.raises(UserError, match="cannot be read"):
        read_json_object(path, is_optional=True)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="no regular file"):
        read_json_object(path, is_optional=True)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "folder", "endless", "loop", "missing", "nul\0", "x" * 300):
        with pytest.raises(UserError):
            read_bounded(tmp_path / name)


def test_a_file_has_a_largest_size(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, max_bytes=100) == b"x" * 100
    with pytest.raises(UserError, match="larger than 99 bytes"):
        read_bounded(path, max_bytes=99)


@pytest.mark.parametrize("name", ["a", "a.b", ".a", "a b", "é", "..a", "a..b"])
def test_names_of_files_in_the_folder(name):
    assert is_plain_name(name) and is_plain_path(name) and is_plain_path(f"below/{name}")
    assert not is_plain_name(f"below/{name}")


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/a", "//a", "a/", "a//b", "../a", "a/../b", "a/..", "./a"),
        *("a\\b", "\\a", "c:a", "C:\\a", "a\0", "a\nb", "\x7f", "\ud800", "a" * 2000),
        *(None, 1, b"a", ["a"]),
    ],
)
def test_names_that_lead_elsewhere(name):
    assert not is_plain_name(name) and not is_plain_path(name)

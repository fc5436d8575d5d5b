"""Keys: kept as hashes, found by what is shown, spent by tokens."""

import stat

import pytest

from bert_core.errors import UserError
from serving.keys import Key, KeyRecord, Keys, add_key, hash_of, read_keys


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


def test_a_name_is_taken_once(tmp_path):
    path = tmp_path / "keys.json"
    add_key(path, "ann", ["predict"], None)
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


def test_without_a_rate_there_is_no_end():
    key = Key(KeyRecord(name="a", sha256=hash_of("b")))
    for _ in range(10):
        key.pay(1 << 40)


def test_those_with_a_limit_have_tokens():
    limited = KeyRecord(name="a", sha256=hash_of("b"), tokens_per_minute=60)
    buckets = Keys([limited, KeyRecord(name="c", sha256=hash_of("d"))]).buckets
    assert {name: each.per_minute for name, each in buckets.items()} == {"a": 60}


def test_no_keys_find_none():
    assert Keys([]).find("a") is None

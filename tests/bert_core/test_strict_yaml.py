import pytest

from bert_core.errors import UserError
from bert_core.strict_yaml import line_of, parse_yaml, read_strict_yaml


def test_every_scalar_is_a_text_and_knows_its_line(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("a: [yes, 1, 2020-01-01]\n\nb:\n  - c: null\n    d: 1e3\n  - e\n")
    content, root = read_strict_yaml(path)
    assert content == {"a": ["yes", "1", "2020-01-01"], "b": [{"c": "null", "d": "1e3"}, "e"]}
    assert line_of(root, ()) == 1
    assert line_of(root, ("b",)) == 3
    assert line_of(root, ("b", 0, "d")) == 5
    assert line_of(root, ("b", 0, "union member", "d")) == 5
    assert line_of(root, ("b", 1)) == 6
    assert line_of(root, ("b", 0, "missing")) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "a stands here twice: .*yaml:3"),
        ("x:\n  - a: 1\n    a: 2\n", "a stands here twice: .*yaml:3"),
        ("a: [1\nb: 2\n", "not YAML, .*yaml:2"),
        ("", "an empty file"),
        ("a: !!python/object/apply:os.system [ls]\n", None),
    ],
)
def test_what_is_refused(tmp_path, text, message):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    if message is None:
        assert read_strict_yaml(path)[0] == {"a": ["ls"]}  # a tag is no code
        return
    with pytest.raises(UserError, match=message):
        read_strict_yaml(path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_strict_yaml(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe\x00")
    with pytest.raises(UserError, match="no text|not UTF-8"):
        read_strict_yaml(tmp_path / "bytes.yaml")


LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
HOSTILE = [
    LAUGHS,
    "a: &a [*a]\n",
    "[" * 1000,
    "a: " * 2000,
    "x: " + "{a: " * 100 + "1" + "}" * 100,
    "a: [1\n",
    "a: 1\na: 2\n",
    "a: *nothing\n",
    "a: \0\n",
    "a: 1\n---\nb: 2\n",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_yaml_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    for read in (read_strict_yaml, lambda path: parse_yaml(path.read_bytes(), str(path))):
        with pytest.raises(UserError) as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: 2020-13-45\n",
        "a: !!int x\n",
        "a: !!bool x\n",
        "a: !!timestamp x\n",
        "a: !!python/object/apply:os.system [ls]\n",
        "a: !!float x\n",
        f"a: {'9' * 5000}\n",
        "{[1]: 2}\n",
    ],
)
def test_values_that_are_none_of_their_type_are_refused(text):
    with pytest.raises(UserError, match="not YAML"):
        parse_yaml(text, "here")


def test_values_have_types():
    assert parse_yaml("a: 1\nb: [yes, 1.5, null, x]\n", "here") == {
        "a": 1,
        "b": [True, 1.5, None, "x"],
    }
    assert parse_yaml("x: &a [1]\ny: *a\n", "here") == {"x": [1], "y": [1]}
    assert parse_yaml("", "here") is None
    with pytest.raises(UserError, match="not UTF-8"):
        parse_yaml(b"a: \xff\xfe", "here")

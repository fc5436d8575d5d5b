import pytest

from bert_core.errors import UserError
from bert_core.evaluation.strict_yaml import line_of, read_strict_yaml


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
    with pytest.raises(UserError, match="no text"):
        read_strict_yaml(tmp_path / "bytes.yaml")

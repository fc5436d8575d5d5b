"""JSON and YAML of other people, names of files in them, and text files in any encoding."""

import json
import os
import re
import subprocess

import pytest

from bert_core.errors import TaskDataError, UserError
from bert_core.strict_files import (
    MAX_DEPTH,
    is_plain_name,
    is_plain_path,
    line_of,
    parse_json,
    parse_yaml,
    read_bounded,
    read_json,
    read_json_object,
    read_strict_yaml,
)
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from bert_core.text_encoding import decode_text, unmarked_encoding


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
    with pytest.raises(UserError, match="expected a JSON object, found"):
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
    with pytest.raises(UserError, match="not a regular file"):
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


def test_every_yaml_scalar_is_a_text_and_knows_its_line(tmp_path):
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
def test_yaml_that_is_refused(tmp_path, text, message):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    if message is None:
        assert read_strict_yaml(path)[0] == {"a": ["ls"]}  # a tag is no code
        return
    with pytest.raises(UserError, match=message):
        read_strict_yaml(path)


def test_yaml_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_strict_yaml(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe\x00")
    with pytest.raises(UserError, match="no text|not UTF-8"):
        read_strict_yaml(tmp_path / "bytes.yaml")


LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)
HOSTILE_YAML = [
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
@pytest.mark.parametrize("text", HOSTILE_YAML)
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
def test_yaml_values_that_are_none_of_their_type_are_refused(text):
    with pytest.raises(UserError, match="not YAML"):
        parse_yaml(text, "here")


def test_yaml_values_have_types():
    assert parse_yaml("a: 1\nb: [yes, 1.5, null, x]\n", "here") == {
        "a": 1,
        "b": [True, 1.5, None, "x"],
    }
    assert parse_yaml("x: &a [1]\ny: *a\n", "here") == {"x": [1], "y": [1]}
    assert parse_yaml("", "here") is None
    with pytest.raises(UserError, match="not UTF-8"):
        parse_yaml(b"a: \xff\xfe", "here")


ROWS = [("Größe über alles", "gut"), ("第一条记录", "schlecht")] * 20
TABLES = {
    "train.tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS),
    "train.csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS),
    "train.jsonl": "".join(
        json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n"
        for text, label in ROWS
    ),
}
WORDS = "".join(f"Größe B-MISC\n{text} O\n\n" for text in ("über", "第一") for _ in range(20))
SQUAD = """{"data": [{"paragraphs": [{"context": "Die Größe ist 第一.", "qas": [
    {"id": "1", "question": "Größe?", "answers": [{"text": "第一", "answer_start": 14}]}
]}]}]}"""
FILES = TABLES | {"train.conll": WORDS, "train.json": SQUAD}


def read(path):
    if path.suffix == ".conll":
        return [
            (tuple(each.words), tuple(each.tags)) for each in TASKS["ner"].examples(path, "train")
        ]
    if path.suffix == ".json":
        return [(each.context, each.answers) for each in TASKS["squad"].examples(path, "train")]
    return [(each.first, each.answer) for each in Classification().examples(path, "train")]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_obeyed(tmp_path, name, encoding):
    path = tmp_path / name
    path.write_bytes(FILES[name].encode())
    expected = read(path)
    assert expected
    path.write_bytes(FILES[name].encode(encoding))
    assert read(path) == expected


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "utf-16-be", "utf-32-le", "gb18030"])
def test_another_encoding_is_refused_and_the_remedy_works(tmp_path, name, encoding):
    tmp_path = tmp_path / "it's $HOME"
    tmp_path.mkdir()
    content = FILES[name].encode(encoding, "replace")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TaskDataError, match="not UTF-8") as refused:
        read(path)
    assert "\n" not in str(refused.value)
    if encoding in ("cp1252", "utf-16-le", "utf-16-be"):
        command = re.search(r"iconv .*? > converted\S+", refused.value.remedy)[0]
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)  # noqa: S602 - as it is pasted
        (tmp_path / f"converted{path.suffix}").replace(path)
        assert len(read(path)) == (1 if name == "train.json" else 40)


def test_the_place_is_named(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(b"text\tlabel\nfine\ta\nbad \xff here\tb\n")
    with pytest.raises(TaskDataError, match=r"train\.tsv:3, byte 22"):
        read(path)


def test_texts_of_plain_signs_are_no_other_encoding():
    assert unmarked_encoding(b"plain text with one \0 in it, which is no reason") is None
    assert unmarked_encoding(b"") is None
    assert decode_text("ö".encode(), "here") == "ö"
    with pytest.raises(UserError, match="damaged UTF-16"):
        decode_text(b"\xff\xfea\0\x00\xd8", "here")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.csv", 'sep=;\r\ntext;label\r\n"one, two";a\r\nthree;b\r\n'),
        ("train.csv", '"sep=,"\ntext,label\n"one, two",a\nthree,b\n'),
        ("train.csv", 'text, label\n"one, two", a\nthree, b \n'),
        ("train.csv", "text;label;note, extra\none, two;a;x\nthree;b;y\n"),
        ("train.csv", '"text"\t"label"\n"one, two"\ta\nthree\tb\n'),
        ("train.csv", 'text,label\r"one, two",a\rthree,b\r'),
    ],
)
def test_tables_as_programs_write_them(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert read(path) == [("one, two", "a"), ("three", "b")]


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("['x', 'y']", ("x", "y")),
        ('["x", "y, z"]', ("x", "y, z")),
        ("[0, 3]", ("0", "3")),
        ("[]", ()),
        (" ['x'] ", ("x",)),
        ("x, y", ("x", "y")),
    ],
)
def test_several_labels_as_they_are_written(tmp_path, written, labels):
    path = tmp_path / "train.tsv"
    path.write_text(f"text\tlabel\na cat\t{written}\n")
    (example,) = Classification(kind="multiple").examples(path, "train")
    assert example.answer == labels


@pytest.mark.parametrize("written", ["['x' 'y']", "[x, y]", "[['x']]", "[" * 5000 + "]" * 5000])
def test_a_list_of_labels_that_cannot_be_read_is_refused(tmp_path, written):
    path = tmp_path / "train.tsv"
    path.write_text(f"text\tlabel\na cat\t{written}\n")
    with pytest.raises(TaskDataError, match="not a list of labels"):
        Classification(kind="multiple").examples(path, "train")


def test_a_decimal_comma_is_named(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\na cat\t1,5\n")
    with pytest.raises(TaskDataError, match="decimal comma"):
        Classification(kind="regression").examples(path, "train")


CONLL_U = (
    "# sent_id = 1\n# text = Dámelo ya\n1-2\tDámelo\t_" + "\t_" * 7 + "\n"
    "1\tDa\tdar\tVERB" + "\t_" * 6 + "\n2\tmelo\tyo\tPRON" + "\t_" * 6 + "\n"
    "2.1\tnada\tnada\tPRON" + "\t_" * 6 + "\n3\tya\tya\tADV" + "\t_" * 6 + "\n\n"
)


def test_conll_u_without_comments_ranges_and_words_left_out(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text(CONLL_U)
    task = type(TASKS["ner"])(word_column="1", tag_column="3", scheme="none", comment="#")
    (sentence,) = task.examples(path, "train")
    assert (list(sentence.words), list(sentence.tags)) == (
        ["Da", "melo", "ya"],
        ["VERB", "PRON", "ADV"],
    )


def test_a_comment_is_no_word_and_its_option_is_named(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("# id 1-2\tdomain=en\nDogs\tO\nin\tO\nRome\tB-LOC\n\n")
    (sentence,) = TASKS["ner"].examples(path, "train")
    assert list(sentence.words) == ["Dogs", "in", "Rome"]
    path.write_text("# id 4 x\nRome B-LOC\n\n")
    with pytest.raises(TaskDataError, match="--options.comment"):
        TASKS["ner"].examples(path, "train")

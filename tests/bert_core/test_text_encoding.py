"""Labelled data in any Unicode encoding that says so is read; any other is refused in one line."""

import json
import re
import subprocess

import pytest

from bert_core.errors import TaskDataError, UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from bert_core.text_encoding import decode_text, unmarked_encoding

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
SQUAD = json.dumps(
    {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": "Die Größe ist 第一.",
                        "qas": [
                            {
                                "id": "1",
                                "question": "Größe?",
                                "answers": [{"text": "第一", "answer_start": 14}],
                            }
                        ],
                    }
                ]
            }
        ]
    },
    ensure_ascii=False,
)
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
    with pytest.raises(TaskDataError, match="no list of labels"):
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

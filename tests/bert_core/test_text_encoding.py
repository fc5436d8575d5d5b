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
    content = FILES[name].encode(encoding, "replace")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TaskDataError, match="not UTF-8") as refused:
        read(path)
    assert "\n" not in str(refused.value)
    if encoding in ("cp1252", "utf-16-le", "utf-16-be"):
        wanted = re.search(r"iconv -f (\S+) -t UTF-8", refused.value.remedy)[1]
        command = ["iconv", "-f", wanted, "-t", "UTF-8", str(path)]
        path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
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

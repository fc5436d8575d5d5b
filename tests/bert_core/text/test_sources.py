"""Files, folders and addresses become parts, and parts become lines."""

import codecs
import gzip
import re
import subprocess
import sys

import pytest

from bert_core.errors import UserError
from bert_core.text import corpus, sources
from bert_core.text.sources import CorpusError, CorpusPart


def write_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def make_folder(folder):
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    write_file(folder / "b.txt", "b")
    write_file(folder / "deep" / "a.jsonl", '{"text": "a"}')
    write_file(folder / "c.txt.gz", gzip.compress(b"c"))
    write_file(folder / "notes.md", "not read")
    write_file(folder / ".hidden" / "d.txt", "not read")
    return folder


def test_folders_and_globs_are_read_in_the_order_of_their_paths(tmp_path, read):
    folder = make_folder(tmp_path / "texts")
    assert read(folder) == (["b", "c", "a"], {"files_of_unknown_format": 1})
    assert read(folder / "*.txt*")[0] == ["b", "c"]
    assert read(folder / "**" / "*.jsonl", folder / "b.txt")[0] == ["a", "b"]


def test_addresses_are_read_through_pyarrow(tmp_path, read):
    folder = make_folder(tmp_path / "texts")
    address = folder.as_uri()
    assert read(f"{address}/b.txt")[0] == ["b"]
    assert read(f"{address}/*.txt*")[0] == ["b", "c"]
    found, skipped = read(address)
    assert {"a", "b", "c"} <= set(found) and skipped == {"files_of_unknown_format": 1}
    with pytest.raises(CorpusError, match="no text files at this address"):
        read(f"{address}/none.txt")
    with pytest.raises(CorpusError, match="no such kind of address"):
        read("ftp://somewhere/a.txt")


def test_of_a_task_the_training_texts_are_read_each_once(tmp_path, read):
    assert read(f"task://sst2={write_sst2(tmp_path / 'sst2')}")[0] == ["good", "bad"]
    tagged = "EU B-ORG\nrejects O\n\nPeter B-PER\n"
    (tmp_path / "ner").mkdir()
    for split in ("train", "dev"):
        text = tagged if split == "train" else tagged.replace("EU", "UN")
        write_file(tmp_path / "ner" / f"{split}.txt", text)
    assert read(f"task://ner={tmp_path / 'ner'}")[0] == ["EU rejects", "Peter"]


def write_sst2(folder):
    folder.mkdir()
    write_file(folder / "train.tsv", "sentence\tlabel\ngood\t1\nbad\t0\ngood\t1\n")
    write_file(folder / "dev.tsv", "sentence\tlabel\nnever trained on\t1\n")
    return folder


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, read):
    write_file(tmp_path / "a.doc", "x")
    (tmp_path / "empty").mkdir()
    for text, message in [
        (tmp_path / "absent.txt", "no such file or folder"),
        (tmp_path / "*.txt", "no such file or folder"),
        (tmp_path / "empty", "no text files"),
        (tmp_path / "a.doc", "unknown text format"),
        ("docs://no_such_package", "no such package"),
        ("docs://json,no_such_package", "no such package: docs://no_such_package"),
        ("task://mrcp=/tmp", "no such task, did you mean mrpc|no such task"),
        ("task://mrpc", "no data of a task"),
        ("task://mrpc=/no/such/folder", "no such file or folder"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            read(text)
        assert "\n" not in str(caught.value)


def test_several_packages_are_read_one_after_the_other(read):
    both, _ = read("docs://json,csv")
    assert both == [*read("docs://json")[0], *read("docs://csv")[0]] and len(both) > 2


def test_datasets_of_hugging_face_are_read_by_their_package(tmp_path, read, monkeypatch):
    write_file(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": "b"}\n')
    assert read(f"hf://{tmp_path}")[0] == ["a", "b"]
    with pytest.raises(UserError, match="no name of a data set: hf://csv"):
        read("hf://csv")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[datasets\]'"):
        read("hf://org/name:config:train")


def test_the_size_of_the_text_is_guessed_for_compressed_files():
    plain = CorpusPart("a", "text", "a", 10)
    compressed = CorpusPart("b", "text", "b", 10, compression="xz")
    assert plain.text_bytes == 10 and 20 < compressed.text_bytes < 50


def test_invalid_utf8_is_counted_or_refused(tmp_path, read):
    path = write_file(tmp_path / "a.txt", b"fine\nbad \xff\xfe byte \xef\xbf\xbd\n")
    documents, dropped = read(path)
    assert documents == ["fine\nbad �� byte �"]
    assert dropped == {"invalid_utf8_characters_replaced": 2}
    with pytest.raises(CorpusError, match=r"a\.txt, byte 9"):
        read(path, strict=True)


@pytest.mark.parametrize("word", ["wörd ", "é", "漢", "🎈", "a"])
def test_a_line_without_end_is_cut_between_characters(tmp_path, monkeypatch, word, read):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 64)
    path = write_file(tmp_path / "a.txt", word * 300)
    documents, dropped = read(path)
    assert "".join(documents[0].split()) == "".join((word * 300).split())
    assert dropped["lines_cut_for_length"] > 3 and len(dropped) == 1
    assert max(len(line.encode()) for line in documents[0].split("\n")) <= 64


def test_line_ends_byte_order_mark_and_nul(tmp_path, read):
    documents, dropped = read(
        write_file(tmp_path / "a.txt", b"\xef\xbb\xbf= T =\r\na\0b\r\n\r\nc\r\n")
    )
    assert documents == ["ab\nc"] and dropped == {"heading_lines": 1}


GERMAN = "".join(f"Größe {n} über alles, sagte die Köchin.\n\n" for n in range(40))
CHINESE = "".join(f"第{n}条记录的内容在这里。\n\n" for n in range(40))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("text", [GERMAN, CHINESE])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("part_bytes", [100, 1 << 20])
def test_byte_order_marks_are_obeyed(
    tmp_path, monkeypatch, read, encoding, text, compressed, part_bytes
):
    content = text.encode(encoding)
    path = tmp_path / ("a.txt.gz" if compressed else "a.txt")
    write_file(path, gzip.compress(content) if compressed else content)
    monkeypatch.setattr(sources, "PART_BYTES", part_bytes)
    assert read(path, strict=True) == (text.split("\n\n")[:-1], {})


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE])
def test_both_byte_orders(tmp_path, read, mark):
    order = "utf-16-be" if mark == codecs.BOM_UTF16_BE else "utf-16-le"
    write_file(tmp_path / "a.jsonl", mark + '{"text": "Größe"}\n'.encode(order))
    assert read(tmp_path / "a.jsonl")[0] == ["Größe"]
    write_file(tmp_path / "b.txt", mark + "Größe".encode(order) + b"\xd8")  # breaks off
    with pytest.raises(CorpusError, match=r"b\.txt"):
        read(tmp_path / "b.txt")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "latin-1"),
        (GERMAN, "utf-16-le"),
        (GERMAN, "utf-16-be"),
        (GERMAN, "utf-32-le"),
        (CHINESE, "gb18030"),
        (CHINESE, "big5"),
        (CHINESE, "utf-16-le"),
        ("plain ASCII text\n" * 9, "utf-16-le"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_text_in_another_encoding_is_refused(tmp_path, read, text, encoding, name):
    path = write_file(tmp_path / name, text.encode(encoding, "replace"))
    with pytest.raises(CorpusError, match=r"not UTF-8.*iconv"):
        read(path)


def test_the_remedy_for_another_encoding_works(tmp_path, read):
    path = write_file(tmp_path / "a.txt", GERMAN.encode("cp1252"))
    with pytest.raises(CorpusError) as refused:
        read(path)
    assert refused.value.remedy.count(f"{path} > converted.txt") == 2
    convert, drop = re.findall(r"iconv (-f \S+ -t \S+(?: -c)?)", refused.value.remedy)
    for options, documents in (
        (convert, GERMAN),
        (drop, GERMAN.encode("ascii", "ignore").decode()),
    ):
        command = ["iconv", *options.split(), str(path)]
        done = subprocess.run(command, capture_output=True)
        write_file(tmp_path / "b.txt", done.stdout)
        assert read(tmp_path / "b.txt", strict=True)[0] == documents.split("\n\n")[:-1]


def test_a_few_invalid_bytes_in_much_text_are_replaced_in_every_part(tmp_path, monkeypatch, read):
    lines = [b"a fine line of some sixty characters, and nothing wrong with it"] * 2000
    lines[::100] = [b"one bad \xff byte"] * 20
    path = write_file(tmp_path / "a.txt", b"\n".join(lines))
    assert read(path)[1] == {"invalid_utf8_characters_replaced": 20}
    monkeypatch.setattr(sources, "PART_BYTES", 30_000)
    assert set(read(path)[1]) == {"invalid_utf8_characters_replaced"}


def test_bytes_that_continue_nothing_are_refused_not_looped_over(tmp_path, monkeypatch, read):
    monkeypatch.setattr(corpus, "_MAX_LINE_BYTES", 64)
    with pytest.raises(CorpusError, match="not UTF-8"):
        read(write_file(tmp_path / "a.txt", b"\x80" * 1000))

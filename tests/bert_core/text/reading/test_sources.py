import gzip
import sys

import pytest

from bert_core.errors import UserError
from bert_core.text.reading.sources import CorpusError, CorpusPart


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


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, read):
    write_file(tmp_path / "a.doc", "x")
    (tmp_path / "empty").mkdir()
    for text, message in [
        (tmp_path / "absent.txt", "no such file or folder"),
        (tmp_path / "*.txt", "no such file or folder"),
        (tmp_path / "empty", "no text files"),
        (tmp_path / "a.doc", "unknown text format"),
        ("docs://no_such_package", "no such package"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            read(text)
        assert "\n" not in str(caught.value)


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

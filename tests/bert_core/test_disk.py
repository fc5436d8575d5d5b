import hashlib

import pytest

from bert_core.disk import file_sha256, flush_to_disk


def test_the_hash_is_that_of_the_bytes_on_disk(tmp_path):
    path = tmp_path / "file"
    content = bytes(range(256)) * 5000
    path.write_bytes(content)
    assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    path.write_bytes(content[:-1])
    assert file_sha256(path) != hashlib.sha256(content).hexdigest()


def test_files_and_folders_are_flushed_and_what_is_missing_is_not(tmp_path):
    (tmp_path / "file").write_text("text")
    flush_to_disk(tmp_path / "file")
    flush_to_disk(tmp_path)
    with pytest.raises(FileNotFoundError):
        flush_to_disk(tmp_path / "missing")

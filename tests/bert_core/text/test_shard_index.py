import json

import pytest

from bert_core.text.shard_index import (
    ShardIndex,
    ShardsError,
    write_index,
)
from bert_core.text.shards import open_shards, token_dtype, write_shard

DOCUMENTS = [[[5, 6, 7], [8]], [[9, 10]], [[11], [12], [13, 14]]]


def make_folder(folder, documents=DOCUMENTS, vocab_size=100):
    dtype = token_dtype(vocab_size)
    entries = [
        write_shard(folder, "train-00000", documents, dtype),
        write_shard(folder, "train-00001", documents[:1], dtype),
    ]
    index = ShardIndex(
        dtype=dtype, vocab_size=vocab_size, tokenizer_sha256="0" * 64, splits={"train": entries}
    )
    write_index(folder, index)
    return folder


def test_the_data_hash_follows_the_content(tmp_path):
    same = [open_shards(make_folder(tmp_path / name)).data_hash for name in "ab"]
    other = open_shards(make_folder(tmp_path / "c", [[[5, 6, 7], [9]]])).data_hash
    assert same[0] == same[1] != other


def test_no_file_is_left_beside(tmp_path):
    make_folder(tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ShardsError, match="no token shards"):
        open_shards(tmp_path)
    make_folder(tmp_path)
    with pytest.raises(ShardsError, match="no split 'heldout'"):
        open_shards(tmp_path, "heldout")
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"version": 9}))
    with pytest.raises(ShardsError, match="version 9"):
        open_shards(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ShardsError, match="damaged index"):
        open_shards(tmp_path)

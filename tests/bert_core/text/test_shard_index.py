import json

import pytest
from synthetic_shards import write_two_shards

from bert_core.text.shard_index import (
    ShardsError,
)
from bert_core.text.shards import open_shards


def test_the_data_hash_follows_the_content(tmp_path):
    same = [open_shards(write_two_shards(tmp_path / name)).data_hash for name in "ab"]
    other = open_shards(write_two_shards(tmp_path / "c", [[[5, 6, 7], [9]]])).data_hash
    assert same[0] == same[1] != other


def test_no_file_is_left_beside(tmp_path):
    write_two_shards(tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ShardsError, match="no token shards"):
        open_shards(tmp_path)
    write_two_shards(tmp_path)
    with pytest.raises(ShardsError, match="no split 'heldout'"):
        open_shards(tmp_path, "heldout")
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(index | {"version": 9}))
    with pytest.raises(ShardsError, match="version 9"):
        open_shards(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ShardsError, match="damaged index"):
        open_shards(tmp_path)

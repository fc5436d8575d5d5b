import json

import pytest
from synthetic_shards import write_two_shards

from bert_core.text.shards import ShardsError, open_shards, read_index, verify_shards


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


def rewritten(folder, change):
    path = folder / "index.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def train(content):
    return content["splits"]["train"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: train(content).update(files={}),
        lambda content: train(content)["files"].popitem(),
        lambda content: train(content).update(name="../train-00000"),
        lambda content: train(content).update(name="/etc/passwd"),
        lambda content: train(content).update(num_tokens=-1),
        lambda content: train(content).update(num_tokens=2**63),
        lambda content: train(content).update(num_tokens="10"),
        lambda content: train(content).update(num_tokens=True),
        lambda content: content.update(vocab_size=0),
        lambda content: content.update(vocab_size=2**63),
        lambda content: content.update(splits=[]),
        lambda content: content["files"].update({"../x": {"num_bytes": 1, "sha256": ""}}),
        lambda content: content["files"].update({"a\\b": {"num_bytes": 1, "sha256": ""}}),
        lambda content: content["files"].update({"x": None}),
    ],
)
def test_an_index_of_the_wrong_kind_or_not_whole_is_refused(tmp_path, change):
    write_two_shards(tmp_path)
    rewritten(tmp_path, change)
    for read in (read_index, open_shards, verify_shards):
        with pytest.raises(ShardsError):
            read(tmp_path)


def test_an_index_names_the_tokenizer_that_lies_beside_it(tmp_path):
    write_two_shards(tmp_path)
    verify_shards(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ShardsError, match=r"lacks tokenizer\.json"):
        verify_shards(tmp_path)

"""Token shards and their index on disk."""

import json
import subprocess
import sys

import numpy as np
import pytest
from synthetic_shards import DOCUMENTS, write_two_shards

from bert_core.text.shards import (
    FileEntry,
    ShardsError,
    describe_file,
    open_shards,
    read_index,
    token_dtype,
    verify_shards,
    write_index,
)


def as_documents(shard):
    return [
        [
            shard.tokens[shard.sentences[s] : shard.sentences[s + 1]].tolist()
            for s in range(shard.documents[d], shard.documents[d + 1])
        ]
        for d in range(shard.num_documents)
    ]


def test_what_is_written_is_read(tmp_path):
    shards = open_shards(write_two_shards(tmp_path))
    assert [shard.name for shard in shards.shards] == ["train-00000", "train-00001"]
    assert as_documents(shards.shards[0]) == DOCUMENTS
    assert (shards.num_documents, shards.num_sentences, shards.num_tokens) == (4, 8, 14)
    first = shards.shards[0]
    assert (first.num_documents, first.num_sentences, first.num_tokens) == (3, 6, 10)
    assert isinstance(first.tokens, np.memmap) and first.tokens.dtype == np.uint16
    assert shards.vocab_size == 100 and len(shards.data_hash) == 64


def test_empty_sentences_and_documents_never_stand_in_a_shard(tmp_path):
    write_two_shards(tmp_path, [[[], [5]], [], [[]], [[6]]])
    assert as_documents(open_shards(tmp_path).shards[0]) == [[[5]], [[6]]]
    verify_shards(tmp_path)


def test_vocabularies_above_uint16(tmp_path):
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")
    write_two_shards(tmp_path, [[[70_000, 5]]], vocab_size=70_001)
    assert as_documents(open_shards(tmp_path).shards[0]) == [[[70_000, 5]]]


@pytest.mark.parametrize("part", ["tokens", "sentences", "documents"])
def test_a_flipped_bit_is_named(tmp_path, part):
    path = write_two_shards(tmp_path) / f"train-00001.{part}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShardsError, match=path.name):
        verify_shards(tmp_path)


def test_a_truncated_or_missing_file_is_named_on_opening(tmp_path):
    path = write_two_shards(tmp_path) / "train-00000.tokens.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ShardsError, match=r"train-00000\.tokens\.npy"):
        open_shards(tmp_path)
    path.unlink()
    with pytest.raises(ShardsError, match="missing"):
        open_shards(tmp_path)


def test_offsets_that_contradict_each_other_are_found(tmp_path):
    write_two_shards(tmp_path)
    path = tmp_path / "train-00001.sentences.npy"
    np.save(path, np.array([0, 0, 4], dtype=np.int64))
    index = read_index(tmp_path)
    index.splits["train"][1].files[path.name] = describe_file(path)
    write_index(tmp_path, index)
    with pytest.raises(ShardsError, match="empty sentence"):
        verify_shards(tmp_path)


def test_pickled_arrays_are_refused(tmp_path):
    write_two_shards(tmp_path)
    path = tmp_path / "train-00000.tokens.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    index = read_index(tmp_path)
    entry = index.splits["train"][0]
    entry.files[path.name] = FileEntry.model_validate(describe_file(path).model_dump())
    write_index(tmp_path, index)
    with pytest.raises(ShardsError, match="damaged"):
        open_shards(tmp_path)


def test_verify_as_a_command(tmp_path):
    command = [sys.executable, "-m", "bert_core.text.shards", "verify", str(tmp_path)]
    write_two_shards(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 documents, 14 tokens: intact" in done.stdout
    (tmp_path / "train-00000.documents.npy").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


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

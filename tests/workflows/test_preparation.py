import pytest

from bert_core.text.shards import PARTS, FileEntry, ShardEntry, open_shards
from bert_core.text.sources import CorpusPart
from workflows.preparation import Preparation, _groups, run


def entry(num_tokens):
    name = str(num_tokens)
    files = {f"{name}.{part}.npy": FileEntry(num_bytes=1, sha256="0" * 64) for part in PARTS}
    return ShardEntry(
        name=name, num_documents=1, num_sentences=1, num_tokens=num_tokens, files=files
    )


def test_consecutive_pieces_are_joined_until_a_shard_is_full():
    sizes = [30, 80, 100, 5, 5, 5]
    groups = [[each.num_tokens for each in group] for group in _groups(map(entry, sizes), 100)]
    assert groups == [[30, 80], [100], [5, 5, 5]]
    assert list(_groups([], 100)) == []


def plan(folder, parts, **settings):
    values = {
        "tokenizer": None,
        "vocabulary_size": 200,
        "cased": False,
        "alphabet_coverage": 0.9995,
        "tokenizer_sample_bytes": 10**6,
        "heldout_share": 0.1,
        "shard_tokens": 100,
        "strict": False,
        "text_column": "text",
        "language": "en",
        "num_workers": 2,
        "logged_settings": {"a": 1},
    }
    output = folder / "out"
    (output / "work").mkdir(parents=True)
    return Preparation(output=output, work=output / "work", parts=parts, **(values | settings))


@pytest.mark.ray
def test_all_steps_in_order(tmp_path, ray_cluster):
    texts = [f"Document {n} of {n % 7} words. It says no more.\n\n" for n in range(60)]
    parts = []
    for number in range(3):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(texts[number * 20 : number * 20 + 20]))
        parts.append(CorpusPart(f"{number}.txt", "text", str(path), path.stat().st_size))
    preparation = plan(tmp_path, parts)
    index = run(preparation)
    assert index.settings == {"a": 1}
    assert [source["text"] for source in index.sources] == ["0.txt", "1.txt", "2.txt"]
    train, heldout = open_shards(tmp_path / "out"), open_shards(tmp_path / "out", "heldout")
    assert train.num_documents + heldout.num_documents == 60
    assert [shard.name for shard in train.shards] == ["train-00000", "train-00001", "train-00002"]
    assert {path.name for path in (tmp_path / "out" / "work").iterdir()} >= {"scanned", "encoded"}

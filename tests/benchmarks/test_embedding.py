"""Training of embeddings beside sentence-transformers."""

import json

import pytest
from finetuning_runs import WORDS, write_encoder

from benchmarks import embedding


@pytest.fixture
def options(tmp_path):
    write_encoder(tmp_path / "encoder")
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        pairs = [
            {"query": WORDS[n % 10], "passage": " ".join(WORDS[n % 7 :]), "score": n % 3 / 2}
            for n in range(24)
        ]
        text = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / "data" / f"{split}.jsonl").write_text(text)
    given = ["--task", "embedding", "--data", str(tmp_path / "data"), "--seeds", "0", "1"]
    given += ["--model", str(tmp_path / "encoder"), "--batch", "8", "--max_length", "32"]
    return [*given, "--json", str(tmp_path / "result.json")]


@pytest.mark.parametrize(("kind", "metric"), [("pairs", "ndcg_at_10"), ("scores", "spearman")])
def test_both_arms_learn_the_same_pairs_and_are_measured_alike(options, tmp_path, kind, metric):
    options += ["--options", json.dumps({"kind": kind})]
    embedding.main(options)
    results = json.loads((tmp_path / "result.json").read_text())
    arms = [(each["arm"], each["seed"]) for each in results["trainings"]]
    assert sorted(arms) == [(arm, seed) for arm in sorted(embedding.ARMS) for seed in (0, 1)]
    for each in results["trainings"]:
        assert each["metrics"].keys() == results["start"].keys()
        assert each["examples_a_second"] > 0
    summary = results["summary"]
    assert summary["speedup"] > 0 and results["criterion"] == metric
    low, high = (summary["difference"][metric][name] for name in ("low", "high"))
    assert low <= high
    embedding.main(options)
    assert json.loads((tmp_path / "result.json").read_text()) == results, "nothing is missing"

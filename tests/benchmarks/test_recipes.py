"""Recipes of fine-tuning compared: the data they are made of, and the figures made of reports."""

import json

import pytest

from benchmarks import recipes
from bert_core.tasks.catalog import TASKS


def test_rare_data_has_its_share_and_no_text_twice(tmp_path):
    lines = ["sentence\tlabel", *(f"text {n}\t{int(n % 3 == 0)}" for n in range(3_000))]
    (tmp_path / "train.tsv").write_text("\n".join([*lines, lines[1]]) + "\n")
    folder = recipes.write_rare(tmp_path, tmp_path / "rare", 400)
    rows = {split: (folder / f"{split}.tsv").read_text().splitlines() for split in ("train", "dev")}
    for each in rows.values():
        assert each[0] == lines[0] and len(each) == 401
        assert sum(row.endswith("\t1") for row in each[1:]) == 20
    assert len({*rows["train"][1:], *rows["dev"][1:]}) == 800
    before = {split: (folder / f"{split}.tsv").read_bytes() for split in rows}
    recipes.write_rare(tmp_path, tmp_path / "rare", 400)
    assert before == {split: (folder / f"{split}.tsv").read_bytes() for split in rows}


def test_each_variant_is_compared_with_the_plain_recipe(monkeypatch, tmp_path):
    scores = {"none": [0.5, 0.6], "balanced": [0.7, 0.8], "0": [0.5, 0.6], "2": [0.4, 0.5]}

    def report(name, given, storage):
        del name, storage
        field, _, values = given[-1].partition("=")
        points, trials = [], []
        for text in values.split(","):
            value = float(text) if text.isdecimal() else text
            names = [f"{text}-{seed}" for seed in range(2)]
            points.append({"point": {field: value}, "trials": names})
            trials += [
                {"name": each, "score": score, "figures": {"dev/f1": score}, "seconds": 1.0}
                for each, score in zip(names, scores[text], strict=True)
            ]
        head = {"criterion": "f1_macro", "num_train": 9, "num_dev": 4}
        return head | {"points": points, "trials": trials}

    monkeypatch.setattr(recipes, "swept", report)
    axes = ["loss.class_weights=none,balanced", "loss.focal_gamma=0,2"]
    found = recipes.measured("t", [], axes, tmp_path)
    assert list(found.variants) == ["plain", "loss.class_weights=balanced", "loss.focal_gamma=2"]
    balanced, focal = list(found.variants.values())[1:]
    assert balanced.difference == pytest.approx(0.2) and focal.difference == pytest.approx(-0.1)
    assert balanced.reach is not None and balanced.reach > 0
    assert found.variants["plain"].deviation == pytest.approx(0.0707, abs=1e-4)
    assert "+20.00" in recipes.table(found)


def test_thresholds_of_one_half_are_measured_on_the_other(tmp_path):
    """Of a model that ranks well and always says 0: a threshold below 0.5 finds the rare label."""
    answers = [int(n % 10 == 0) for n in range(600)]
    rows = [f"text {n}\t{answer}" for n, answer in enumerate(answers)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    scores = [0.1 + 0.2 * answer + 0.01 * (n % 9) for n, answer in enumerate(answers)]
    for trial, values in {"good": scores, "blind": [0.1] * 600}.items():
        folder = tmp_path / "runs" / trial
        folder.mkdir(parents=True)
        (folder / recipes.BEST_PREDICTIONS).write_text(
            "".join(
                json.dumps({"label": "0", "scores": {"0": 1 - each, "1": each}}) + "\n"
                for each in values
            )
        )
    of_trials = recipes.Scores([0.5, 0.5], {}, [1.0, 1.0], ["good", "blind"])
    found = recipes.TaskScores("t", "f1_macro", "f1 macro", 9, 600, {"plain": of_trials})
    recipes.add_thresholds(found, TASKS["sst2"], tmp_path, tmp_path)
    first, second, *blind = of_trials.thresholds
    assert first is not None and second is not None and blind == [None, None]
    assert first.value == second.value == pytest.approx(1 - f1_of_the_majority(540, 60))
    assert "+52.63" in recipes.table(found)


def f1_of_the_majority(majority, minority):
    return majority / (2 * majority + minority)  # the mean of its F1 and 0


def test_a_task_joins_those_that_the_file_has(tmp_path, monkeypatch):
    def scores(name, *_):
        return recipes.TaskScores(name, "accuracy", "accuracy", 9, 9, {})

    monkeypatch.setattr(recipes, "measured", scores)
    monkeypatch.setattr(recipes, "table", str)
    path = tmp_path / "found.json"
    given = [
        *("--study", "glue", "--data", str(tmp_path), "--model", str(tmp_path / "a" / "model"))
    ]
    given += ["--storage", str(tmp_path), "--json", str(path)]

    def tasks(*more):
        assert recipes.main([*given, *more]) == 0
        return list(json.loads(path.read_text())["tasks"])

    assert tasks("--tasks", "rte", "wnli") == ["rte", "wnli"]
    assert tasks("--tasks", "mrpc") == ["rte", "wnli", "mrpc"]
    assert tasks("--tasks", "rte", "--seeds", "9") == ["rte"]

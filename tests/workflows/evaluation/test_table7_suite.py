"""The suite of Table 7: which runs there are; and at length, trained on Ray, told in a table."""

import json
import re

import pytest
from finetuning_runs import write_encoder, write_tagged

from bert_core.errors import UserError
from workflows import evaluate
from workflows.finetuning.settings import FeatureSettings, FinetuneSettings
from workflows.paper.published import FINETUNING, TABLE_7_TITLES
from workflows.paper.suite_settings import Table7Settings
from workflows.paper.table7 import rows_to_measure, run_settings


def settings(tmp_path, **changed):
    values = {"model": str(tmp_path / "encoder"), "data": str(tmp_path / "data"), "task": "ner"}
    return Table7Settings(**values | {"storage": str(tmp_path / "storage")} | changed)


def test_the_rows_are_the_papers_and_every_layer_alone(tmp_path):
    names = rows_to_measure(settings(tmp_path), 6)
    assert names[: len(TABLE_7_TITLES)] == list(TABLE_7_TITLES)
    assert names[len(TABLE_7_TITLES) :] == ["layer_1", "layer_2", "layer_3", "layer_4"]
    assert (
        rows_to_measure(settings(tmp_path, by_layer=False, finetune=False), 4)
        == list(TABLE_7_TITLES)[1:]
    )
    with pytest.raises(UserError, match="weighted_sum_last_four needs 4 layers: the model has 3"):
        rows_to_measure(settings(tmp_path), 3)
    with pytest.raises(UserError, match="Table 7 is about tagging"):
        rows_to_measure(settings(tmp_path, task="mrpc"), 6)


def test_runs_differ_in_what_their_row_is_about(tmp_path):
    of = settings(tmp_path, feature_epochs=7, finetuning_epochs=2, max_length=64)
    finetuned, features = run_settings(of, FINETUNING, 1), run_settings(of, "last", 1)
    assert isinstance(finetuned, FinetuneSettings)
    assert isinstance(features, FeatureSettings)
    assert (finetuned.epochs, features.epochs) == (2, 7)
    assert features.strategy == "last"
    assert finetuned.options == features.options
    assert features.options.max_length == 64
    assert run_settings(of, "last", 2).recipe() != features.recipe()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        (["--model", "nobody"], "no such model: nobody"),
        (["--seed", "3"], r"unknown setting, did you mean seeds"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, capsys, changed, match):
    given = ["--suite", "table7", "--model", "x", "--data", "y", "--storage", str(tmp_path)]
    assert evaluate.main([*given, *changed]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(match, error), error


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_every_row_is_trained_once_and_told(tmp_path, capsys, ray_cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    write_tagged(tmp_path / "data")
    (tmp_path / "data" / "test.txt").write_text((tmp_path / "data" / "dev.txt").read_text())
    write_encoder(tmp_path / "encoder", layers=4)
    report = tmp_path / "report"
    given = ["--suite", "table7", "--model", str(tmp_path / "encoder"), "--task", "ner"]
    given += ["--data", str(tmp_path / "data"), "--storage", str(tmp_path / "storage")]
    given += ["--seeds", "1", "--report", str(report), "--max_length", "32", "--batch_size", "8"]
    given += ["--tagger.lstm_size", "16", "--tagger.dropout", "0.1", "--feature_epochs", "6"]
    given += [
        "--feature_learning_rate",
        "2e-2",
        "--finetuning_learning_rate",
        "3e-3",
        "--finetuning_epochs",
        "10",
    ]
    assert evaluate.main(given) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "Weighted sum all layers" in printed
    found = json.loads((report / "table7.json").read_text())
    assert set(found["rows"]) == set(TABLE_7_TITLES)
    for name, row in found["rows"].items():
        assert len(row["dev"]) == 1, name
        assert min(row["dev"]) > 80, (name, row["dev"])
    assert len(found["rows"][FINETUNING]["test"]) == 1
    assert set(found["by_layer"]) == set("01234")
    shares = found["layer_shares"]
    assert set(shares["weighted_sum_all"]) == set("1234")
    assert sum(each[0] for each in shares["weighted_sum_all"].values()) == pytest.approx(1)
    for name in ("f1_by_layer.png", "layer_weights.png"):
        assert (report / name).read_bytes().startswith(b"\x89PNG")
        assert name in (report / "table7.md").read_text()
    runs = sorted((tmp_path / "storage" / "runs").glob("*/summary*"))
    assert len(runs) == 9
    assert evaluate.main(given) == 0
    assert sorted((tmp_path / "storage" / "runs").glob("*/summary*")) == runs
    assert json.loads((report / "table7.json").read_text()) == found

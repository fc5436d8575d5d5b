"""The suites of an encoder: Table 7 and pictures."""

import json
import re

import mlflow
import numpy as np
import pytest
import torch
from finetuning_runs import write_encoder, write_tagged, write_task
from registered_models import copy_store

from bert_core.errors import UserError
from bert_core.features.inspection import AttentionMaps
from workflows import evaluate
from workflows.finetuning.settings import FeatureSettings, FinetuneSettings
from workflows.paper.pictures import attention_drawing, map_drawing
from workflows.paper.published import DASH, FINETUNING, TABLE_7_TITLES
from workflows.paper.suite_settings import PicturesSettings, Table7Settings
from workflows.paper.table7 import (
    SeedScores,
    Table7,
    f1_by_layer_drawing,
    json_table,
    layer_weights_drawing,
    report_table,
    rows_to_measure,
    run_settings,
)
from workflows.reporting.figures import save_picture
from workflows.settings import parse_command_line


def settings(tmp_path, **changed):
    values = {"model": str(tmp_path / "encoder"), "data": str(tmp_path / "data"), "task": "ner"}
    return Table7Settings(**values | {"storage": str(tmp_path / "storage")} | changed)


def test_the_defaults_are_the_papers():
    given = ["--model", "m", "--data", "d"]
    found = parse_command_line(Table7Settings, given)
    assert found.seeds == 5
    assert (found.tagger.lstm_size, found.tagger.lstm_layers) == (768, 2)
    assert (found.batch_size, found.finetuning_epochs) == (32, 3)
    pictures = parse_command_line(PicturesSettings, [*given, "--report", "r"])
    assert (pictures.task, pictures.projection, pictures.layers) == ("conll2003", "tsne", [])
    for kind in (Table7Settings, PicturesSettings):
        fields = kind.model_fields.items()
        assert all(each.description for name, each in fields if name not in ("tagger", "cluster"))


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
        (["--strategy", "last"], "unknown setting"),
    ],
)
def test_a_wrong_setting_of_table7_is_one_line(tmp_path, capsys, changed, match):
    given = ["--suite", "table7", "--model", "x", "--data", "y", "--storage", str(tmp_path)]
    assert evaluate.main([*given, *changed]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(match, error), error


TABLE = Table7(
    "Encoder: tiny.",
    "Features: few.",
    {
        FINETUNING: SeedScores([90.0, 92.0], [80.0, 81.0]),
        "embeddings": SeedScores([70.0, 71.0]),
        "last": SeedScores([85.0]),
    },
)


def test_the_table_has_a_dash_for_what_was_not_measured():
    lines = {row[0].text: [cell.text for cell in row[1:]] for row in report_table(TABLE).cells}
    assert lines["Fine-tuning"] == ["91.00 ± 1.41", "2", "96.4", "80.50 ± 0.71", "92.4"]
    assert lines["Embeddings"] == ["70.50 ± 0.71", "2", "91.0", DASH, ""]
    assert lines["Weighted sum all layers"] == [DASH, DASH, "95.5", DASH, ""]
    assert TABLE.order == ["last", "embeddings"]
    found = json.loads(json_table(TABLE, {"by_layer": {0: [1.0]}}))
    assert found["rows"]["embeddings"]["dev"] == [70.0, 71.0]
    assert found["rows"]["embeddings"]["dev_standard_error"] == pytest.approx(0.5)
    assert found["rows"]["last"]["dev_standard_error"] is None
    assert found["by_layer"] == {"0": [1.0]}


@pytest.mark.slow
def test_drawings_have_the_same_bytes_again(tmp_path):
    scores = {0: [70.0, 71.0], 1: [80.0, 81.0], 2: [79.0, 82.0]}
    shares = {"weighted_sum_all": {1: [0.4, 0.5], 2: [0.6, 0.5]}, "other": {1: [1.0, 1.0]}}
    torch.manual_seed(0)
    maps = AttentionMaps(["[CLS]", "a", "[SEP]"], torch.rand(2, 3, 3, 3).softmax(-1))
    points = {layer: np.random.default_rng(layer).normal(size=(40, 2)) for layer in (0, 2)}
    labels = [f"label {number % 11}" for number in range(40)]  # more than there are colors
    for draw in (
        lambda: f1_by_layer_drawing(scores, {"Fine-tuning": 90.0}, "tiny"),
        lambda: layer_weights_drawing(shares, "tiny"),
        lambda: attention_drawing(maps, "tiny"),
        lambda: map_drawing(points, labels, "tiny"),
    ):
        for name in ("a.png", "b.png"):
            save_picture(draw(), tmp_path / name)
        first, second = ((tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
        assert first.startswith(b"\x89PNG") and first == second


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
    given += ["--feature_learning_rate", "2e-2", "--finetuning_learning_rate", "3e-3"]
    given += ["--finetuning_epochs", "10"]
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
    assert sum(share[0] for share in shares["weighted_sum_all"].values()) == pytest.approx(1)
    for name in ("f1_by_layer.png", "layer_weights.png"):
        assert (report / name).read_bytes().startswith(b"\x89PNG")
        assert name in (report / "table7.md").read_text()
    runs = sorted((tmp_path / "storage" / "runs").glob("*/summary*"))
    assert len(runs) == 9
    assert evaluate.main(given) == 0
    assert sorted((tmp_path / "storage" / "runs").glob("*/summary*")) == runs
    assert json.loads((report / "table7.json").read_text()) == found


@pytest.fixture
def given(tmp_path, store_template):
    """The command line, over small data and an encoder of three layers."""
    copy_store(store_template, tmp_path / "storage")
    write_tagged(tmp_path / "tagged")
    write_task(tmp_path / "texts")
    write_encoder(tmp_path / "encoder", layers=3)
    words = ["--suite", "pictures", "--model", str(tmp_path / "encoder"), "--points", "30"]
    return [*words, "--report", str(tmp_path / "report"), "--storage", str(tmp_path / "storage")]


@pytest.mark.slow
def test_pictures_of_tagged_words(tmp_path, given, capsys):
    given += ["--data", str(tmp_path / "tagged"), "--task", "ner", "--projection", "pca"]
    given += ["--words", "ba", "nothing", "rume", "--neighbours", "2", "--layers", "0,-1"]
    assert evaluate.main(given) == 0, capsys.readouterr().err
    assert "nothing is not in the data" in capsys.readouterr().out
    report = tmp_path / "report"
    found = json.loads((report / "pictures.json").read_text())
    assert found["layers"] == [0, 3]
    assert found["labels"] == ["O", "ONE", "TWO"]
    assert [(each["word"], each["label"]) for each in found["neighbours"]] == [
        ("ba", "ONE"),
        ("rume", "O"),
    ]
    for each in found["neighbours"]:
        assert f"**{each['word']}**" in each["text"]
        assert len(each["near"]) == 2
        assert 1 >= each["near"][0][0] >= each["near"][1][0]
    text = (report / "pictures.md").read_text()
    pictures = re.findall(r"!\[.*?\]\(([\w.-]+)\)", text)
    assert pictures == ["map.png", "attention-1.png", "attention-2.png", "attention-3.png"]
    for name in pictures:
        assert (report / name).read_bytes().startswith(b"\x89PNG")
    assert "ba (ONE)" in text
    uri = f"sqlite:///{tmp_path / 'storage' / 'mlflow' / 'mlflow.db'}"
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("pictures")
    (run,) = client.search_runs([experiment.experiment_id])
    logged = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert logged == {*pictures, "pictures.md", "pictures.html", "pictures.json"}


@pytest.mark.slow
def test_pictures_of_labelled_texts(tmp_path, given, capsys):
    given += ["--data", str(tmp_path / "texts"), "--task", "classification"]
    given += ["--sentences", "ba keli monu", "rashi to", "--examples", "30"]
    assert evaluate.main(given) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "report" / "pictures.json").read_text())
    assert found["sentences"] == ["ba keli monu", "rashi to"]
    assert found["labels"] == ["down", "up"]
    assert found["layers"] == [0, 1, 3]
    assert found["neighbours"]
    assert "mlflow   experiment pictures, run encoder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        (["--task", "nr"], "unknown task, did you mean .*: --task nr .one of"),
        (["--task", "squad"], "no labels of words or texts: --task squad"),
        (["--layers", "4"], "--layers needs 4 layers: the model has 3"),
        (
            ["--words", "nothing", "never"],
            "none of the words is in the data: --words nothing never",
        ),
        (["--sentences", " "], "an empty sentence: --sentences"),
        (["--sentences", "ba " * 47], r"a sentence of 49 tokens: --sentences ba ba"),
        (["--split", "test"], "no file of the test split"),
        (["--sentence", "ba"], r"unknown setting, did you mean sentences"),
    ],
)
def test_a_wrong_setting_of_pictures_is_one_line(tmp_path, given, capsys, changed, match):
    write_encoder(tmp_path / "encoder", layers=3, positions=64)
    given += ["--data", str(tmp_path / "tagged"), "--task", "ner", *changed]
    assert evaluate.main(given) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(match, error), error
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("suite", ["pictures", "table7", "glue", None])
def test_a_report_in_the_place_of_a_file_is_refused_at_once(tmp_path, capsys, suite):
    path = tmp_path / "mine.txt"
    path.write_text("mine")
    model = ["--model-root" if suite == "glue" else "--model", str(tmp_path)]
    given = [*(["--suite", suite] if suite else []), *model, "--data", str(tmp_path)]
    assert evaluate.main([*given, "--report", str(path)]) == 2
    assert f"not a folder: {path} (give another --report)" in capsys.readouterr().err
    assert path.read_text() == "mine"

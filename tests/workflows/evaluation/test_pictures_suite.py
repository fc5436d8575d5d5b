"""The suite of pictures: on tagged words and on labelled texts, files and MLflow's artifacts."""

import json
import re

import mlflow
import pytest
from finetuning_runs import write_encoder, write_tagged, write_task

from workflows import evaluate


@pytest.fixture
def given(tmp_path):
    """The command line, over small data and an encoder of three layers."""
    write_tagged(tmp_path / "tagged")
    write_task(tmp_path / "texts")
    write_encoder(tmp_path / "encoder", layers=3)
    words = ["--suite", "pictures", "--model", str(tmp_path / "encoder"), "--points", "30"]
    return [*words, "--report", str(tmp_path / "report"), "--storage", str(tmp_path / "storage")]


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
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert pictures == ["map.png", "attention-1.png", "attention-2.png", "attention-3.png"]
    for name in pictures:
        assert (report / name).read_bytes().startswith(b"\x89PNG")
    assert "### ba (ONE)" in text
    uri = f"sqlite:///{tmp_path / 'storage' / 'mlflow' / 'mlflow.db'}"
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("pictures")
    (run,) = client.search_runs([experiment.experiment_id])
    logged = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert logged == {*pictures, "pictures.md", "pictures.json"}


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
def test_what_is_wrong_is_said_in_one_line(tmp_path, given, capsys, changed, match):
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

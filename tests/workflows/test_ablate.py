"""The command of an ablation: refused in one line; trained on a real cluster, killed, going on."""

import json

import pytest
from ablation_runs import AblationCommand, write_inputs

from workflows.ablate import main


@pytest.fixture
def inputs(tmp_path):
    return write_inputs(tmp_path / "inputs")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"study": "objectives"}, "unknown study, did you mean objective: --study objectives"),
        ({"rows.objective": "mlm"}, "what the study varies cannot be given: --rows.objective"),
        ({"task": "classification=nowhere"}, "nowhere"),
        ({"task": "clasification=here"}, "did you mean classification"),
        ({"variants": "ltr"}, "unknown variant"),
        ({"seeds": 0}, "greater than or equal to 1"),
        ({"rows.masked_share": 0.3}, "left to right: left_to_right masks nothing"),
        ({"finetuning.max_length": 64}, "rows of 64 tokens, the encoders have 32 positions"),
        ({"preset": "no_such_file.yaml"}, "cannot be read"),
    ],
)
def test_bad_input_is_one_line(inputs, tmp_path, capsys, monkeypatch, changed, expected):
    monkeypatch.setattr("workflows.ablate.train", lambda _: pytest.fail("it was not refused"))
    assert main(AblationCommand(tmp_path, "ablation", inputs, 8, changed).arguments()) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and expected in lines[0], captured.err
    assert not list(tmp_path.glob("runs/*/")) and not list(tmp_path.glob("ablations/*/"))


def of_mlflow(storage):
    """The runs of the experiment by name, and the names of registered models."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{storage / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ablations")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    return client, runs, [model.name for model in client.search_registered_models()]


def finished(storage):
    """When each pre-training and each fine-tuning came to its end."""
    names = ("runs/quickstart-*/artifacts/outcome.json", "runs/*/trial.json")
    paths = [path for name in names for path in storage.glob(name)]
    return {str(path): path.stat().st_mtime_ns for path in paths}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_killed_ablation_does_only_what_is_missing(inputs, tmp_path, ray_cluster):
    environment = {"RAY_ADDRESS": ray_cluster}
    settings = {"variants": "left_to_right", "at_once": 1}
    storage = tmp_path / "store"
    ablation = AblationCommand(storage, "ablation", inputs, 30, settings, environment)
    driver = ablation.start()
    driver.until(lambda: finished(storage), 180)
    driver.kill()
    before = finished(storage)
    assert len(before) == 1, "it was killed too late"

    printed = ablation.finish()
    assert "runs     1 of 2 pre-trainings left, then 4 fine-tunings" in printed
    assert "2 of 2 encoders pre-trained, 4 of 4 fine-tunings finished" in printed
    assert "left to right, seed 1  accuracy " in printed, "trials are called by their variant"
    after = finished(storage)
    assert before.items() <= after.items() and len(after) == 6  # none was done again

    report = json.loads((ablation.folder / "artifacts" / "report.json").read_text())
    scores = report["compared"]["classification"]["scores"]
    assert {name: len(each) for name, each in scores.items()} == {"mlm_nsp": 2, "left_to_right": 2}
    assert min(scores["mlm_nsp"]) > 80, "the task can be learned"
    losses = [each["figures"] for each in report["variants"]]
    assert "heldout/masked_token_loss" in losses[0] and "heldout/next_token_loss" in losses[1]
    config = json.loads(
        (storage / "runs" / report["variants"][1]["run"] / "model" / "config.json").read_text()
    )
    assert config["is_decoder"] is True

    client, runs, models = of_mlflow(storage)
    assert models == [], "an ablation registers nothing"
    parent = runs.pop("ablation")
    assert len(runs) == 6 and {run.info.status for run in runs.values()} == {"FINISHED"}
    parents = {run.data.tags["mlflow.parentRunId"] for run in runs.values()}
    assert parents == {parent.info.run_id} and parent.info.status == "FINISHED"
    assert parent.data.metrics["classification/mlm_nsp"] == pytest.approx(
        sum(scores["mlm_nsp"]) / 200
    )
    artifacts = {artifact.path for artifact in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "report.md", "report.json", "scores.svg"} <= artifacts

    again = ablation.finish(seconds=60)
    assert "4 of 4 fine-tunings finished" in again and finished(storage) == after

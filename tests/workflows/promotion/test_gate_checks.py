"""A version is measured against a gate and the champion; latency and memory in a new process."""

import dataclasses
import json
import shutil

import numpy as np
import psutil
import pytest
import torch
from registered_models import DATA_SHA256, written_models

from bert_core.errors import UserError
from bert_core.model_folder import CONFIG
from bert_core.predictor import load_predictor
from workflows.promotion import gate_checks
from workflows.promotion.champion import Version
from workflows.promotion.gate import CRITERION, CheckFile, Gate, MeasuredWith
from workflows.promotion.gate_checks import Contender, Sampling, judge
from workflows.promotion.gate_measurements import machine, measure_footprint, peak_memory_bytes

FEW = Sampling(num_resamples=200)
CHECKS = """
words: {up: [ba, keli, monu], down: [rume, noka]}
checks:
  - {name: up is up, kind: minimum functionality, templates: "{up} {up2}", label: up}
  - {name: half and half, kind: minimum functionality, templates: ["ba", "rume"], label: up}
"""
FIVE = '["ba", "rume", "noka", "rume noka", "noka rume"]'


@pytest.fixture(scope="module")
def models():
    return written_models()


@pytest.fixture(scope="module")
def data(models):
    return str(models["data"])


def contender(folder, number=2, data_sha256=DATA_SHA256, **metrics):
    return Contender(Version(number, None, metrics, data_sha256), folder)


def judged(gate, mine, theirs=None):
    lines = judge(gate, mine, theirs, FEW)
    return {line.check: line for line in lines}


@pytest.fixture
def right(models):
    return contender(models["right"], 2, accuracy=0.9)


@pytest.fixture
def wrong(models):
    return contender(models["wrong"], 3, accuracy=0.1)


def test_both_are_measured_on_the_same_data(right, wrong, data, models):
    gate = Gate(data=data, metrics={"accuracy": 0.9}, largest_drop={"accuracy": 0.01, "f1": 0.01})
    better = judged(gate, right, wrong)
    assert all(each.passed for each in better.values()) and len(better) == 3
    assert better["accuracy"].values == {"accuracy": 1.0}
    assert better["drop of accuracy"].values["gain.accuracy"] == 1.0
    worse = judged(gate, wrong, right)
    assert not any(each.passed for each in worse.values())
    assert "champion 1.0000, 40 examples" in worse["drop of accuracy"].measured
    same = judged(gate, contender(models["right"], 5), right)["drop of accuracy"]
    assert same.passed and same.values["gain.accuracy.low"] == 0


def test_the_first_champion_is_measured_alone(right, data):
    gate = Gate(data=data, metrics={CRITERION: 0.9}, largest_drop={CRITERION: 0.01})
    lines = judged(gate, right)
    assert lines["accuracy"].passed and lines["drop of accuracy"].measured == "no champion yet"
    assert judged(Gate(largest_drop={CRITERION: 0.0}), right)["drop of criterion"].passed


def test_examples_without_answers_do_not_count(right, tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nba keli\tup\nrume\t\n")
    assert judged(Gate(data=str(tmp_path), metrics={"accuracy": 1}), right)["accuracy"].passed
    (tmp_path / "dev.tsv").write_text("text\nba keli\n")
    with pytest.raises(UserError, match="no example has an answer"):
        judged(Gate(data=str(tmp_path), metrics={"accuracy": 1}), right)


def test_options_read_a_table_of_other_columns(right, data, tmp_path):
    (tmp_path / "dev.tsv").write_text("title\tlabel\nba keli\tup\n")
    options = {"text_column": "title"}
    gate = Gate(data=str(tmp_path), options=options, metrics={"accuracy": 1})
    assert judged(gate, right)["accuracy"].passed
    with pytest.raises(UserError, match="title"):
        judged(Gate(data=str(tmp_path), metrics={"accuracy": 1}), right)


def test_recorded_metrics_are_compared_where_there_is_no_data(right, models):
    gate = Gate(metrics={"accuracy": 0.5}, largest_drop={CRITERION: 0.05})
    lines = judged(gate, contender(models["right"], 4, accuracy=0.86), right)
    assert lines["accuracy"].passed
    drop = lines["drop of accuracy"]
    assert drop.passed and drop.measured == "-0.0400, champion 0.9000, recorded"
    assert not judged(gate, contender(models["right"], 4, accuracy=0.84), right)[
        "drop of accuracy"
    ].passed


def test_recorded_metrics_of_other_data_cannot_be_compared(right, models):
    gate = Gate(largest_drop={CRITERION: 0.05})
    for sha256 in (None, "cd" * 32):
        other = contender(models["right"], 4, sha256, accuracy=0.9)
        with pytest.raises(UserError, match="versions 4 and 2 were not measured on the same data"):
            judged(gate, other, right)
    with pytest.raises(UserError, match="no accuracy was recorded: champion 5"):
        judged(gate, right, contender(models["right"], 5))


def test_an_encoder_is_judged_by_its_loss(models):
    def encoder(number, loss):
        return contender(models["encoder"], number, masked_token_loss=loss)

    gate = Gate(largest_drop={CRITERION: 0.1})
    assert judged(gate, encoder(2, 2.55), encoder(1, 2.5))["drop of masked_token_loss"].passed
    assert not judged(gate, encoder(2, 2.65), encoder(1, 2.5))["drop of masked_token_loss"].passed
    with pytest.raises(UserError, match="no known task in the model"):
        judged(Gate(data="data", metrics={"accuracy": 1}), encoder(2, 2.5))


def test_behaviour_is_checked_by_each_check_of_a_file(right, tmp_path):
    (tmp_path / "words.yaml").write_text(CHECKS)
    files = [CheckFile(file=tmp_path / "words.yaml", pass_rate=0.6)]
    lines = judged(Gate(checks=files), right)
    first, second = lines["words: up is up"], lines["words: half and half"]
    assert first.passed and first.measured == "6 of 6 (100.0%)"
    assert not second.passed and second.measured == "1 of 2 (50.0%)"
    assert "“rume”: down" in second.verdict and second.values == {"pass_rate.words": 0.5}


def test_a_rate_that_is_just_enough_is_enough(right, tmp_path):
    # 1 - 4 / 5 is less than 0.2 in floating point.
    (tmp_path / "words.yaml").write_text(CHECKS.replace('["ba", "rume"]', FIVE))
    files = [CheckFile(file=tmp_path / "words.yaml", pass_rate=0.2)]
    line = judged(Gate(checks=files), right)["words: half and half"]
    assert line.measured == "1 of 5 (20.0%)" and line.passed


@pytest.mark.slow
def test_latency_memory_and_size_are_judged(right, data, footprint, monkeypatch):
    monkeypatch.setattr(gate_checks, "measure_footprint", lambda *_: footprint)
    generous = Gate(
        data=data,
        p95_latency_ms=60_000,
        memory_mb=60_000,
        folder_mb=0.2,
        measured_with=MeasuredWith(requests=20),
    )
    lines = judged(generous, right)
    assert lines.keys() == {"p95 latency", "memory", "folder"}
    assert all(line.passed for line in lines.values())
    assert "batch 1, threads 1" in lines["p95 latency"].measured
    assert 0.05 < lines["folder"].values["folder_mb"] < 0.2
    strict = generous.model_copy(
        update={"p95_latency_ms": 0.001, "memory_mb": 1.0, "folder_mb": 0.001}
    )
    assert not any(line.passed for line in judged(strict, right).values())


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"metrics": {"acuracy": 0.5}}, "unknown metric, did you mean accuracy: acuracy of classi"),
        ({"largest_drop": {"fq": 0.5}}, "unknown metric, did you mean f1: fq of classification"),
    ],
)
def test_a_metric_that_the_task_has_not(right, data, changes, match):
    with pytest.raises(UserError, match=match):
        judged(Gate(data=data, **changes), right)
    with pytest.raises(UserError, match="unknown metric"):
        judged(Gate(**changes), right)


def test_another_task_never_takes_the_place_of_a_champion(right, models, data):
    for name, kind in (("other", "mrpc"), ("encoder", "BertForPreTraining")):
        with pytest.raises(UserError, match=f"version 7 has another task, {kind}: champion 2 has"):
            judged(Gate(data=data), contender(models[name], 7), right)


def test_other_labels_are_another_question(right, models, data, tmp_path):
    folder = tmp_path / "labels"
    shutil.copytree(models["right"], folder)
    config = json.loads((folder / CONFIG).read_text())
    config["bertline_task"]["settings"]["labels"] = ["bad", "good"]
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / "checksums").unlink()
    with pytest.raises(UserError, match="version 2 has other labels: than champion 9"):
        judged(Gate(data=data, largest_drop={"accuracy": 1}), right, contender(folder, 9))


def test_a_folder_that_does_not_open_is_no_champion(right, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(right.folder, folder)
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"!")
    with pytest.raises(UserError, match="model.safetensors"):
        judged(Gate(), dataclasses.replace(right, folder=folder))


MEASURED_WITH = MeasuredWith(requests=20, batch_size=2)


def measured(folder):
    predictor = load_predictor(written_models()["right"])
    examples = predictor.task.examples(written_models()["data"], "dev")
    return measure_footprint(folder, predictor.task_name, predictor.task, examples, MEASURED_WITH)


@pytest.fixture(scope="module")
def footprint(models):
    """Latency and memory of a model, measured beside 400 MB that only this process has."""
    mine = torch.ones(100_000_000)
    before = peak_memory_bytes() / 1e6
    assert before > 400 and mine[0] == 1
    footprint = measured(models["right"])
    assert footprint.memory_mb < before - 200
    return footprint


@pytest.mark.slow
def test_latency_and_memory_are_those_of_a_process_of_its_own(footprint):
    assert 0.05 < footprint.p50_ms <= footprint.p95_ms
    assert footprint.memory_mb > 150


@pytest.mark.slow
def test_a_measuring_process_that_dies_is_an_error(tmp_path, capfd):
    with pytest.raises(UserError, match="the measuring process exited with 1"):
        measured(tmp_path / "none")
    assert "config.json" in capfd.readouterr().err


def test_the_peak_is_no_less_than_what_is_resident():
    block = np.ones(20_000_000)  # 160 MB
    resident = psutil.Process().memory_info().rss
    assert block[-1] == 1
    del block
    # The kernel sums its counters by core up to some pages less when it notes the peak.
    assert resident - (16 << 20) <= peak_memory_bytes() < 100 * resident


def test_the_machine_is_named_without_its_name():
    import platform

    assert "cores" in machine()
    assert platform.node() not in machine()

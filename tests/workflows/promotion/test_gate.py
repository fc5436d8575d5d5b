"""The gate: its file, and the verdict of each requirement."""

import json
import re

import pytest
import yaml

from bert_core.errors import UserError
from bert_core.evaluation.intervals import Interval
from workflows.promotion.gate import (
    CRITERION,
    DROP_ON_DATA,
    CheckFile,
    Gate,
    MeasuredWith,
    at_most,
    default_gate,
    drop,
    gain_interval,
    least,
    no_champion,
    read_gate,
    record,
    require_data,
    summary,
    table,
)


def written(tmp_path, text):
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    return path


def test_the_gate_of_the_documentation_is_read(repository, tmp_path):
    page = (repository / "docs" / "promotion.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    gate = read_gate(written(tmp_path, text))
    assert gate.data == str(tmp_path / "data" / "sentiment")
    assert gate.metrics == {"accuracy": 0.85, "f1": 0.8}
    assert gate.largest_drop == {"accuracy": 0.01}
    assert gate.checks == [CheckFile(file=tmp_path / "behaviour.yaml", pass_rate=0.95)]
    assert (gate.p95_latency_ms, gate.memory_mb, gate.folder_mb) == (40, 800, 300)
    assert gate.measured_with == MeasuredWith()
    assert set(yaml.safe_load(text)) | {"options"} == set(Gate.model_fields)


def test_addresses_and_absolute_paths_stay_as_they_are(tmp_path):
    assert read_gate(written(tmp_path, "data: hf://glue:sst2")).data == "hf://glue:sst2"
    absolute = tmp_path / "elsewhere"
    assert read_gate(written(tmp_path, f"data: {absolute}")).data == str(absolute)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("metric: {a: 1}", r"unknown key metric, did you mean metrics: .*gate\.yaml:1 \(data, "),
        (
            "split: dev\nmeasured_with: {thread: 2}",
            r"unknown key thread, did you mean threads: .*gate\.yaml:2 \(requests, ",
        ),
        (
            "checks:\n  - file: a.yaml\n    passrate: 1",
            r"unknown key passrate, did you mean pass_rate: .*gate\.yaml:3 \(file, pass_rate",
        ),
        ("metrics: {accuracy: high}", r"metrics\.accuracy: .*number.*gate\.yaml:1"),
        ("\nlargest_drop: {f1: -0.1}", r"largest_drop\.f1 is -0\.1: write the allowed drop"),
        ("p95_latency_ms: 0", r"p95_latency_ms: .*greater than 0"),
        ("checks: [{file: a, pass_rate: 95}]", r"checks\.0\.pass_rate: .*less than or equal to 1"),
        ("- metrics", "not a gate"),
        ("metrics: {a: 1}\nmetrics: {a: 2}", "metrics stands here twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, match):
    with pytest.raises(UserError, match=match) as caught:
        read_gate(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_without_a_gate_recorded_metrics_must_not_drop_and_measured_ones_hardly():
    assert default_gate(None).largest_drop == {CRITERION: 0}
    assert default_gate("data") == Gate(data="data", largest_drop={CRITERION: DROP_ON_DATA})


def test_latency_needs_texts():
    require_data(Gate(p95_latency_ms=5, data="data"), "gate.yaml")
    require_data(Gate(folder_mb=5), "gate.yaml")
    for gate in (Gate(p95_latency_ms=5), Gate(memory_mb=5)):
        with pytest.raises(UserError, match="without texts to measure it on: gate.yaml"):
            require_data(gate, "gate.yaml")


@pytest.mark.parametrize(
    ("name", "value", "required", "passed"),
    [
        ("accuracy", 0.85, 0.85, True),
        ("accuracy", 0.8499, 0.85, False),
        ("accuracy", float("nan"), 0.85, False),
        ("mean_squared_error", 0.2, 0.3, True),
        ("mean_squared_error", 0.4, 0.3, False),
    ],
)
def test_a_metric_has_to_be_good_enough(name, value, required, passed):
    line = least(name, value, required)
    assert line.passed is passed
    assert ("FAILS" in line.verdict) is not passed
    assert line.required.startswith("<=" if name.endswith("error") else ">=")


def test_there_may_be_too_much_of_a_figure():
    line = at_most("memory", "memory_mb", 801.04, 800, "MB")
    assert (line.measured, line.required, line.verdict) == ("801.0 MB", "<= 800 MB", "FAILS")
    assert line.values == {"memory_mb": 801.04}
    assert at_most("memory", "memory_mb", 800, 800, "MB").passed


@pytest.mark.parametrize(
    ("interval", "most", "verdict"),
    [
        (Interval(0.0, 0.0, 0.0), 0.0, "passes"),
        (Interval(0.02, 0.005, 0.03), 0.0, "passes"),
        (Interval(-0.005, -0.0099, 0.0), 0.01, "passes"),
        (Interval(0.0, -0.02, 0.02), 0.01, "FAILS: too few examples to tell"),
        (Interval(0.03, -0.02, 0.08), 0.01, "FAILS: too few examples to tell"),
        (Interval(-0.02, -0.03, -0.015), 0.01, "FAILS"),
        (Interval(float("nan"), float("nan"), float("nan")), 0.01, "FAILS"),
    ],
)
def test_the_worst_end_of_the_interval_decides_a_drop(interval, most, verdict):
    line = drop("accuracy", 0.9, interval, most, "100 examples")
    assert line.verdict == verdict
    assert "champion 0.9000, 100 examples" in line.measured


def test_of_an_error_what_is_less_is_gained():
    worse = Interval(0.3, 0.2, 0.5)  # the candidate's error less the champion's
    assert gain_interval("mean_squared_error", worse) == Interval(-0.3, -0.5, -0.2)
    assert gain_interval("accuracy", worse) is worse
    assert not drop("mean_squared_error", 0.1, worse, 0.4, "").passed
    assert drop("mean_squared_error", 0.1, worse, 0.5, "").passed


def test_all_of_it_is_kept_and_shown():
    lines = [least("f1", 0.5, 0.8), no_champion("f1"), at_most("folder", "folder_mb", 1, 2, "MB")]
    titles, first, second, _ = table(lines)
    assert titles == ["check", "measured", "required", "verdict"]
    assert first == ["f1", "0.5000", ">= 0.8", "FAILS"]
    assert second[1] == "no champion yet" and second[3] == "passes"
    assert summary(lines) == "failed 1 of 3: f1"
    assert summary(lines[1:]) == "passed 2 of 2"
    kept = json.loads(json.dumps(record(lines, Gate(metrics={"f1": 0.8}), "some, 2 cores")))
    assert kept["passed"] is False and kept["gate"]["metrics"] == {"f1": 0.8}
    assert kept["checks"][0]["values"] == {"f1": 0.5} and "cores" in kept["machine"]

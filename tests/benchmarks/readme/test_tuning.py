import json

from benchmarks.readme.parts import RESULTS
from benchmarks.readme.tuning import tuning_block


def point(mean, level):
    values = {"batch_size": 16, "optimizer.peak_learning_rate": 5e-5}
    return {
        "point": values,
        "mean": mean,
        "deviation": 0.0031,
        "level": level,
        "trials": ["one", "two"],
    }


def test_nothing_was_measured(tmp_path):
    assert tuning_block(tmp_path).startswith("Still to be measured")


def test_what_the_example_found(tmp_path):
    folder = tmp_path / "docs" / "sweep-mrpc"
    folder.mkdir(parents=True)
    report = {
        "data": "MRPC",
        "model": "small",
        "trials": [{"seconds": 50.0}] * 6,
        "wall_seconds": 165.0,
        "at_once": 2,
        "device_hours": {"cpu": 2.04},
        "points": [point(0.8604, True), point(0.859, True), point(0.71, False)],
    }
    (folder / "report.json").write_text(json.dumps(report))
    block = tuning_block(tmp_path)
    assert "MRPC from small (22 M parameters), 2 seeds, 6 trials, 2.0 core-hours" in block
    assert "The sweep took 1.10 times" in block
    assert "86.0 ± 0.3 (batch_size 16, peak_learning_rate 5e-05), and 1 of the other 2" in block


def test_what_a_sweep_costs(tmp_path):
    (tmp_path / RESULTS).mkdir(parents=True)
    sweep = {"trial_seconds": [40.0, 31.6], "at_once": 2, "command_seconds": 41.2}
    result = {"tiny": sweep, "trials": sweep | {"command_ratio": 1.148}}
    (tmp_path / RESULTS / "tuning-cpu.json").write_text(json.dumps(result))
    block = tuning_block(tmp_path)
    assert "A sweep of 2 tiny trials takes 41 s once Ray is up" in block
    assert "2 trials of 32 s and more, 2 at once, takes 1.15 times" in block

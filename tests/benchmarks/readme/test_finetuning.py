import json

import pytest

from benchmarks.readme import finetuning as readme_finetuning
from benchmarks.readme.parts import RESULTS

AROUND = {"device": "A", "threads": 2, "torch": "2.13", "transformers": "5.23"}


@pytest.fixture
def write(tmp_path):
    """Writes a file of results; returns where the README would be."""
    (tmp_path / RESULTS).mkdir(parents=True)

    def make(name, result):
        (tmp_path / RESULTS / f"{name}.json").write_text(json.dumps(result))
        return tmp_path

    return make


def speed(task, ratio):
    return {
        "settings": {"task": task, "batch": 32},
        "encoder": {"num_hidden_layers": 6, "hidden_size": 384},
        "surroundings": AROUND,
        "mean_length": 54.6,
        "longest": 117,
        "arms": {
            "ours": {"examples_per_second": 60.04},
            "transformers": {"examples_per_second": 40.0},
        },
        "ratio": ratio,
    }


def quality(task, seeds, difference):
    interval = {"value": 0.004, "low": -0.01, "high": 0.018}
    return {
        "settings": {"task": task, "epochs": 3},
        "examples": {"train": 3668, "dev": 408},
        "criterion": "f1",
        "summary": {
            "seeds": seeds,
            "f1": {"ours": 0.88, "transformers": 0.876, "difference": interval},
        }
        if difference
        else {"seeds": seeds, "f1": {"ours": 0.88, "transformers": 0.876, "difference": None}},
        "compared": {str(seed): {"f1": {**interval, "value": 0.005}} for seed in seeds},
    }


def test_a_row_for_each_task_and_the_setup_once(write):
    write("finetuning-mrpc-cpu", speed("mrpc", 1.52))
    write("finetuning-quality-mrpc-cpu", quality("mrpc", [0, 1, 2], True))
    root = write("finetuning-squad-cpu", speed("squad", 1.349))
    block = readme_finetuning.finetuning_block(root)
    assert "| MRPC | 55, 117 at most | 60.0 | 40.0 | 1.52 times as fast |" in block
    assert "| SQuAD 1.1 | 55, 117 at most | 60.0 | 40.0 | 1.35 times as fast |" in block
    assert block.count("6 layers, 384 wide, steps of 32 on A (2 threads)") == 1
    assert len(block.splitlines()) == 2 + 2 + 2


def test_a_difference_over_seeds_or_over_the_examples_of_one(write):
    write("finetuning-quality-mrpc-cpu", quality("mrpc", [0, 1, 2], True))
    write("finetuning-mrpc-cpu", speed("mrpc", 1.5))
    root = write("finetuning-quality-squad-cpu", quality("squad", [4], False))
    block = readme_finetuning.finetuning_quality_block(root)
    mrpc, squad = (line for line in block.splitlines() if line.startswith(("| MRPC", "| SQuAD")))
    assert "| 3,668 x 3 | F1 | 3 | 88.0 | 87.6 | +0.4 (-1.0 to +1.8) |" in mrpc
    assert "| F1 | 1 | 88.0 | 87.6 | +0.5 (-1.0 to +1.8) |" in squad
    assert "Still to be measured: CoLA, CoNLL-2003." in block


def test_what_was_not_measured_is_said(write):
    root = write("pretraining-cpu-tiny", {})
    assert "Still to be measured" in readme_finetuning.finetuning_block(root)
    everything = "MRPC, CoLA, CoNLL-2003, SQuAD 1.1"
    assert everything in readme_finetuning.finetuning_quality_block(root)


def test_a_race_without_both_arms_is_not_shown(write):
    begun = quality("cola", [], False) | {"summary": {"seeds": []}}
    root = write("finetuning-quality-cola-cpu", begun)
    assert "| CoLA" not in readme_finetuning.finetuning_quality_block(root)

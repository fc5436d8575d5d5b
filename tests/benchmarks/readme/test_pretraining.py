import json

import pytest

from benchmarks.pretraining.rounds import TrainingArm, figures, summary
from benchmarks.readme import pretraining as readme_pretraining
from benchmarks.readme.parts import RESULTS

PEAKS = {"matmul_flops_per_second": 788e12, "data_sheet_flops_per_second": 989.4e12}
TOKENS, FLOPS = 65_754, 36e12
SECONDS = {
    "ours, plain": 0.2,
    "ours, fast": 0.08,
    "transformers, sdpa": 0.5,
    "transformers, sdpa, compiled": 0.2,
}


@pytest.fixture
def root(tmp_path):
    """A tree with nothing in it but room for results."""
    (tmp_path / RESULTS).mkdir(parents=True)
    return tmp_path


def arm(name, seconds, **values):
    return TrainingArm(
        name,
        name.startswith("transformers"),
        lambda: None,
        seconds=[seconds] * 3,
        rounds=[[seconds] * 20] * 3,
        **{"peak_bytes": int(400e9 * seconds), "compile_seconds": 40.0} | values,
    )


def measured(arms=SECONDS, device="NVIDIA H200", **values):
    """Results as the benchmark itself makes and keeps them."""
    found = summary(
        [arm(name, seconds) for name, seconds in arms.items()],
        tokens=TOKENS,
        model_flops=FLOPS,
        peaks=PEAKS,
    )
    return {
        "settings": {
            "device": "cuda",
            "preset": "base",
            "vocab": 30_522,
            "batch": 16,
            "sequence_length": 512,
            "lengths": "natural",
            "dropout": 0.1,
            "attention_dropout": 0.0,
        },
        "surroundings": {
            "device": device,
            "threads": 16,
            "torch": "2.11.0+cu130",
            "transformers": "5.17.0",
        },
        "rows_per_step": 256,
        "peaks": PEAKS,
        "arms": found,
        **values,
    }


def write(root, name, result):
    (root / RESULTS / f"{name}.json").write_text(json.dumps(result))


def test_nothing_was_measured_on_a_gpu(root):
    said = readme_pretraining.pretraining_gpu_block(root)
    assert (
        said.startswith("Still to be measured") and "benchmarks.pretraining --device cuda" in said
    )
    write(root, "pretraining-cuda-killed", {"arms": {"ours, fast": {"loss": 1.0}}})
    assert readme_pretraining.pretraining_gpu_block(root) == said


def test_ours_stands_beside_the_best_of_theirs(root):
    write(root, "pretraining-cuda-a", measured())
    said = readme_pretraining.pretraining_gpu_block(root)
    row = said.splitlines()[2].split(" | ")
    assert row[1] == "256 rows of up to 512"
    assert row[2] == "821,925 (fast)"
    assert row[3] == "57%, 45%"  # 36e12 / 0.08 of either peak
    assert row[4] == "32"
    assert row[5:8] == ["328,770 (sdpa, compiled)", "80", "2.50 times as fast"]
    assert row[8].startswith("[figures](benchmarks/results/pretraining-cuda-a.json) |")
    assert "On NVIDIA H200 (16 threads) in bfloat16, dropout 0.1, attention dropout 0;" in said


def test_two_machines_stand_in_two_tables(root):
    for device in ("A", "B"):
        write(root, f"pretraining-cuda-{device}", measured(device=device))
    first, second = readme_pretraining.pretraining_gpu_block(root).split("\n| model ")
    assert "On A (" in first and "On B (" in second


def test_what_a_reader_must_know_of_a_run_is_said(root):
    result = measured(unfinished=True, left_out=["ours, x"], failed={"ours, y": "why"})
    result["arms"]["ours, fast"] |= {"steady": False, "spread_of_rounds": 0.052}
    result["arms"]["transformers, sdpa"] = {"loss": 1.0}  # not timed yet when it was killed
    write(root, "pretraining-cuda-a", result)
    said = readme_pretraining.pretraining_gpu_block(root)
    assert "unfinished; left out: ours, x; failed: ours, y; rounds differ: ours, fast 5% |" in said


def test_a_card_without_data_sheet_and_a_machine_without_transformers(root):
    result = measured({"ours, fast": 0.08})
    result["arms"]["ours, fast"]["mfu_of_data_sheet"] = None
    write(root, "pretraining-cuda-a", result)
    said = readme_pretraining.pretraining_gpu_block(root)
    assert "| 57% | 32 | not measured |  |  | [figures]" in said


def test_the_papers_recipe_is_a_sentence(root):
    arms = SECONDS | {"ours, attention dropout": 0.1, "transformers, attention dropout": 0.4}
    write(root, "pretraining-cuda-a", measured(arms))
    said = readme_pretraining.pretraining_gpu_block(root)
    assert "ours 657,540, transformers 164,385 real tokens/s" in said


def test_an_ablation_has_a_table_of_its_own(root):
    row = figures(arm("padded", 0.16), tokens=TOKENS, model_flops=FLOPS, peaks=PEAKS)
    rows = {"packing": {"without": "packing: padded rows", **row, "ratio": 2.0}}
    write(root, "pretraining-cuda-b", measured({"ours, fast": 0.08}, ablation=rows))
    alone = readme_pretraining.pretraining_gpu_block(root)
    assert "| packing: padded rows | 410,962 | 2.00 times as fast |" in alone
    assert "821,925 real tokens/s with all of them" in alone
    assert "| model |" not in alone
    write(root, "pretraining-cuda-a", measured())
    both = readme_pretraining.pretraining_gpu_block(root)
    assert both.endswith(alone) and both.count("821,925 (fast)") == 1


def test_on_the_cpu_ours_stands_beside_the_faster_of_theirs(root):
    for name in ("tiny", "mini", "mini-8192"):
        result = measured({"ours": 1.0, "transformers, sdpa": 8.0, "transformers, eager": 4.0})
        result["settings"] |= {"device": "cpu", "lengths": "full", "sequence_length": 128}
        del result["rows_per_step"]  # older results have only the option
        write(root, f"pretraining-cpu-{name}", result)
    said = readme_pretraining.pretraining_block(root)
    assert said.count("| 16 rows of 128 | 65,754 | 16,438 (eager) | 4.0 times as fast |") == 3
    assert "in float32" in said

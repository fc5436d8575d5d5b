import json
from pathlib import Path

import pytest

from benchmarks.gpu.headlines import headline

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["finetuning-mrpc-cpu", "features-cpu"])
def test_the_rate_and_the_ratio_of_results_that_are_kept(name):
    results = json.loads((RESULTS / f"{name}.json").read_text())
    told = headline(results)
    ratio = results["ratio"] if "ratio" in results else results["ratios"]["transformers"]
    assert f"{ratio:.2f} times as fast as transformers" in told


def test_pretraining_is_told_by_our_best_arm_beside_their_best():
    arm = {"mfu": 0.5, "tokens_per_second": 700_000.0}
    results = {
        "benchmark": "pretraining",
        "arms": {
            "ours, plain": arm | {"tokens_per_second": 500_000.0},
            "ours, fast": arm,
            "transformers": arm | {"ratio": 3.0},
            "transformers, compiled": arm | {"ratio": 1.6},
        },
    }
    assert headline(results) == (
        "700,000 tokens/s (ours, fast), MFU 50.0%, 1.60 times as fast as transformers, compiled"
    )


def test_an_encoder_is_told_by_its_loss_and_its_tasks():
    results = {
        "benchmark": "encoder_run",
        "pretraining": {"step": 2000, "tokens": 10**8, "heldout": [{"masked_token_loss": 2.5}]},
        "finetuning": {"sst2": {"compared": {"pre-trained": 0.85, "untrained": 0.8}}},
    }
    told = headline(results)
    assert "held-out masked-token loss 2.500" in told and "sst2 0.850 (untrained 0.800)" in told


def test_what_is_not_known_shows_its_first_numbers_and_what_is_broken_does_not_break():
    assert (
        headline({"tokens": 5, "rate": {"median": 2.5}, "is": True}) == "tokens 5, rate.median 2.5"
    )
    assert headline({"benchmark": "pretraining", "unfinished": True}) == "not all is there"

import json
import sys

import pytest

from benchmarks import pretraining


@pytest.mark.parametrize("lengths", ["full", "natural"])
def test_runs_ours_beside_transformers_and_writes_json(tmp_path, monkeypatch, capsys, lengths):
    path = tmp_path / "folder" / "results.json"
    command = (
        f"benchmark --preset tiny --vocab 500 --batch 3 --sequence_length 24 --lengths {lengths} "
        f"--rounds 2 --steps 1 --warmup 1 --json {path}"
    )
    monkeypatch.setattr(sys, "argv", command.split())
    pretraining.main()
    results = json.loads(path.read_text())
    arms = results["arms"]
    assert list(arms) == ["ours", "transformers, sdpa", "transformers, eager"]
    assert all(arm["tokens_per_second"] > 0 and arm["mfu"] > 0 for arm in arms.values())
    assert [name for name, arm in arms.items() if "ratio" in arm] == list(arms)[1:]
    tokens = results["real_tokens_per_step"]
    assert tokens == 72 if lengths == "full" else tokens < 72
    assert "real tokens/s" in capsys.readouterr().out


def test_arms_that_disagree_are_no_benchmark():
    with pytest.raises(AssertionError, match="gradient norm 2"):
        pretraining.assert_equal("theirs", (1.0, 2.0), (1.0, 2.1), tolerance=1e-4)


def test_processor_time_is_for_one_thread_of_the_cpu():
    with pytest.raises(SystemExit):
        pretraining.parse_arguments(["--clock", "cpu", "--device", "cuda"])

import json
import sys

import pytest
import torch
from pretraining_runs import write_corpus

from benchmarks import learning_curve

WORDS = "learning_curve --size tiny --rows 4 --sequence_length 32 --heldout_rows 32 --minutes 0.01"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command line of a race of 0.6 seconds for each, over a corpus of its own."""
    results, picture = tmp_path / "results.json", tmp_path / "picture.png"
    shards = write_corpus(tmp_path / "shards")
    words = [*WORDS.split(), "--shards", shards, "--json", results, "--plot", picture]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    monkeypatch.setattr(learning_curve, "TURN_SECONDS", 0.2)
    return results


def test_both_compute_the_same_loss_of_the_same_step(command):
    (ours, theirs), _ = learning_curve.prepare(learning_curve.parse_arguments())
    shorter = (step for step in range(5000) if longest_row(ours.source.step(step)) < 32)
    for step in (3, next(shorter)):
        losses = []
        for contestant in (ours, theirs):
            contestant.model.eval()
            with torch.no_grad():
                losses.append(contestant.loss(contestant.source.step(step)).item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def longest_row(batches):
    (batch,) = batches.micro_batches
    return batch.layout.max_length


@pytest.mark.slow
def test_both_have_the_time_for_themselves_and_are_drawn(command, tmp_path):
    learning_curve.main()
    results = json.loads(command.read_text())
    assert list(results["arms"]) == ["ours", "transformers"]
    for arm in results["arms"].values():
        seconds = [point["seconds"] for point in arm["curve"]]
        assert seconds == sorted(seconds) and seconds[-1] >= 0.6
        start, end = arm["curve"][0], arm["curve"][-1]
        # How many steps fit depends on who else uses the machine.
        assert end["steps"] > 0
        assert end["steps"] < 5 or end["masked_token_loss"] != start["masked_token_loss"]
        assert arm["tokens_per_second"] == pytest.approx(end["tokens"] / end["seconds"])
    assert results["unigram_loss"] > 0 and results["settings"]["minutes"] == 0.01
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

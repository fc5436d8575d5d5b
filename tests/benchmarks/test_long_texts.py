"""The benchmark of long texts: a process for each figure, and what is written of them."""

import json

import pytest

from benchmarks.long_texts import ARMS, main, measure


@pytest.mark.slow
def test_each_arm_is_measured_at_each_length_in_a_process_of_its_own(tmp_path, capsys):
    path = tmp_path / "long.json"
    options = ["--preset", "tiny", "--vocab", "300", "--tokens", "32", "96", "--rounds", "2"]
    assert main([*options, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert list(written["arms"]) == list(ARMS) and written["rounds"] == 2
    for lengths in written["arms"].values():
        assert list(lengths) == ["32", "96"]
        for figures in lengths.values():
            assert figures["seconds"] > 0
            assert figures["peak_bytes"] > figures["bytes_above_weights"] >= 0
    assert capsys.readouterr().out.count("tokens: ") == 3 * 2 * 2


def test_a_longer_text_takes_more_memory_above_the_weights():
    short, long = (measure(ARMS[0], "tiny", 300, tokens) for tokens in (64, 8192))
    assert long["bytes_above_weights"] > short["bytes_above_weights"]

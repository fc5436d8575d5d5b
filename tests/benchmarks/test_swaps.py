"""A few swaps under a real server of a small encoder."""

import json

import pytest
from small_tasks import write_encoder

from benchmarks import swaps
from bert_core.errors import UserError


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_swap_is_answered_and_memory_looked_at(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    path = tmp_path / "results.json"
    swaps.main(["--model", str(encoder), "--swaps", "6", "--json", str(path)])
    result = json.loads(path.read_text())
    assert list(result["after"]) == ["5", "6"] and result["failures"] == []
    first, last = result["after"]["5"], result["after"]["6"]
    assert first["resident_bytes"] > first["unshared_bytes"] > 50e6
    assert result["growth"] == last["resident_bytes"] / first["resident_bytes"] - 1
    assert last["threads"] == first["threads"] > 1 and last["open_files"] > 3
    assert 0 < result["switch_seconds"]["median"] <= result["switch_seconds"]["largest"]
    assert result["requests"] > 6


def test_what_is_measured_needs_five_swaps():
    with pytest.raises(UserError, match="at least 5"):
        swaps.main(["--swaps", "4"])

import json

import pytest

from benchmarks.results_so_far import ResultsSoFar


def test_what_is_known_is_on_disk_and_unfinished_until_the_end(tmp_path, capsys):
    path = tmp_path / "results.json"
    so_far = ResultsSoFar(path, budget_seconds=60)
    so_far.keep(peaks=1, arms={})
    assert json.loads(path.read_text()) == {"peaks": 1, "arms": {}, "unfinished": True}
    so_far.keep(arms={"ours": 2})
    so_far.leave_out("theirs")
    so_far.leave_out("others")
    known = {"peaks": 1, "arms": {"ours": 2}, "left_out": ["theirs", "others"]}
    assert json.loads(path.read_text()) == known | {"unfinished": True}
    so_far.fail("ours", ValueError("no\nsuch thing"))
    known["failed"] = {"ours": "ValueError: no"}
    assert "such thing" in capsys.readouterr().err
    so_far.finish()
    assert json.loads(path.read_text()) == known


def test_the_budget_is_used_up_by_the_clock():
    times = iter([100.0, 130.0, 175.0])
    so_far = ResultsSoFar(None, budget_seconds=60, clock=lambda: next(times))
    assert so_far.seconds_left == pytest.approx(30)
    assert so_far.seconds_left == pytest.approx(-15)

import pytest

from benchmarks.scaling.here import LARGE_BYTES, SMALL_BYTES, predict


def test_the_links_are_read_off_two_all_reduces():
    per_second, start = 1e9, 2e-3
    small, large = (start + size / per_second for size in (SMALL_BYTES, LARGE_BYTES))
    found = predict(small, large, 10.0)
    assert found["all_reduce_bytes_per_second"] == pytest.approx(per_second)
    assert found["all_reduce_start_seconds"] == pytest.approx(start)


def test_what_hides_behind_a_long_pass_is_all_but_the_last_bucket():
    found = predict(1e-3, 25e-3, 10.0)["predicted_seconds"]
    assert 10.0 < found["hidden"] < found["one_by_one"]
    nothing_hides = predict(1e-3, 25e-3, 0.0)["predicted_seconds"]
    assert nothing_hides["hidden"] == pytest.approx(nothing_hides["one_by_one"])

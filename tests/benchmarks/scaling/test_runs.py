import pytest

from benchmarks.scaling.hardware import H200, V5E
from benchmarks.scaling.model import row_flops
from benchmarks.scaling.runs import (
    FAST,
    LOADER_SHARE,
    PAPER,
    assumed_rates,
    efficiency,
    most_devices,
    plan,
    plan_phase,
    same_share,
)
from bert_core.config import SIZES
from bert_core.errors import UserError

LOW, AIM, HIGH = assumed_rates()


def test_both_recipes_read_as_much():
    assert PAPER.slots / 1e9 == pytest.approx(42.6, abs=0.05)
    assert FAST.slots == PAPER.slots


def test_one_device_takes_what_its_rate_says():
    """FLOPs of the run over the rate, the optimizer and the loader besides."""
    run = plan("base", FAST, H200, 1, AIM)
    config = SIZES["base"]
    flops = sum(steps * row_flops(config, FAST.rows, length) for length, steps in FAST.phases)
    hours = flops / AIM.of("base", 128) / LOADER_SHARE / 3600
    assert hours < run.hours < 1.01 * hours
    assert run.dollars == pytest.approx(run.hours * H200.dollars_per_hour)


def test_devices_without_a_row_are_neither_used_nor_paid_for():
    phase = plan_phase("base", PAPER, H200, 1_024, AIM, phase=0)
    assert (phase.used, phase.rows) == (256, 1)
    few, many = (plan("base", PAPER, H200, devices, AIM) for devices in (256, 1_024))
    assert few.dollars == many.dollars
    assert efficiency("base", PAPER, H200, 1_024, AIM) == pytest.approx(
        efficiency("base", PAPER, H200, 256, AIM) / 4
    )


def test_every_row_of_a_step_is_computed_in_micro_batches_that_fit():
    for devices in (1, 8, 1_024):
        for model in ("base", "large"):
            rate = same_share("", 90e12)
            phase = plan_phase(model, FAST, V5E, devices, rate, phase=1)
            assert phase.used * phase.rows >= FAST.rows
            assert phase.micro_rows <= phase.rows
            assert phase.memory_bytes <= V5E.memory_bytes


def test_a_device_too_small_for_a_row_is_told():
    tiny = V5E.__class__("small", 1e12, 1e9, 1e12, V5E.fabric, 1.0)
    with pytest.raises(UserError, match="no row fits"):
        plan_phase("large", FAST, tiny, 8, AIM, phase=0)


def test_more_devices_are_faster_and_keep_less_of_ideal():
    for model in ("base", "large"):
        kept = [efficiency(model, FAST, H200, devices, AIM) for devices in (1, 8, 64, 1_024)]
        assert kept[0] == 1 and kept == sorted(kept, reverse=True)
        hours = [plan(model, FAST, H200, devices, AIM).hours for devices in (1, 8, 64, 1_024)]
        assert hours == sorted(hours, reverse=True)
        most = most_devices(model, FAST, H200, AIM, 0.8)
        assert efficiency(model, FAST, H200, most, AIM) >= 0.8
        assert efficiency(model, FAST, H200, 2 * most, AIM) < 0.8


def test_the_higher_the_rate_the_shorter_the_run():
    low, aim, high = (plan("large", FAST, H200, 8, rate).hours for rate in (LOW, AIM, HIGH))
    assert low > aim > high

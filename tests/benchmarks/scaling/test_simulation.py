import numpy as np
import pytest

from benchmarks.scaling.checks import SIMULATED_WITHIN
from benchmarks.scaling.hardware import NVLINK, V6E, Fabric
from benchmarks.scaling.model import (
    BACKWARD_SHARE,
    Bucket,
    exposed_seconds,
    gradient_buckets,
    slowest_of,
)
from benchmarks.scaling.simulation import simulate_step, simulated_seconds
from bert_core.config import SIZES

FREE = Fabric(2, 1e30, 1e30, 0.0, 0.0)


@pytest.mark.parametrize("fabric", [NVLINK, V6E.fabric], ids=["H200", "v6e"])
@pytest.mark.parametrize("devices", [2, 8, 64, 1_024])
@pytest.mark.parametrize("computing", [8e-3, 80e-3])
def test_the_closed_formula_is_near_the_simulation(fabric, devices, computing):
    buckets = gradient_buckets(SIZES["base"])
    formula = computing + exposed_seconds(buckets, fabric, devices, BACKWARD_SHARE * computing)
    simulated = simulate_step(buckets, fabric, devices, np.full(devices, computing))
    assert simulated == pytest.approx(formula, rel=SIMULATED_WITHIN)


def test_one_device_sends_nothing():
    assert simulate_step(gradient_buckets(SIZES["tiny"]), NVLINK, 1, np.array([0.5])) == 0.5


def test_all_wait_for_the_slowest():
    buckets = (Bucket(1.0, 0.5), Bucket(1.0, 1.0))
    assert simulate_step(buckets, FREE, 2, np.array([1.0, 3.0])) == pytest.approx(3.0)
    slow = Fabric(2, 1.0, 1.0, 0.0, 0.0)
    assert simulate_step(buckets[1:], slow, 2, np.array([1.0, 3.0])) == pytest.approx(4.0)


def test_a_bucket_starts_when_it_is_ready_and_the_link_is_free():
    slow = Fabric(2, 1.0, 1.0, 0.0, 0.0)  # a byte goes through both halves in a second
    early = (Bucket(2.0, 0.0), Bucket(1.0, 1.0))
    assert simulate_step(early, slow, 2, np.full(2, 30.0)) == pytest.approx(31.0)
    late = (Bucket(2.0, 1.0), Bucket(1.0, 1.0))
    assert simulate_step(late, slow, 2, np.full(2, 30.0)) == pytest.approx(33.0)


def test_spread_costs_what_the_slowest_is_late():
    buckets = gradient_buckets(SIZES["tiny"])
    even, uneven = (
        simulated_seconds(buckets, FREE, 256, 1.0, straggler_share=share, steps=200)
        for share in (0.0, 0.02)
    )
    assert uneven / even == pytest.approx(1 + 0.02 * slowest_of(256), rel=2e-3)

"""A step's program: one exchange of gradients, and the same step on any number of devices."""

import pytest
import xla_parts


def test_the_step_is_the_same_on_any_number_of_devices(in_xla):
    alone, _ = in_xla(xla_parts.exchanged, 1, 8)
    together, exchanges = in_xla(xla_parts.exchanged, 2, 4)
    assert together == pytest.approx(alone, abs=1e-5)
    # All that the micro-batches add up to in one exchange, and the tallies.
    assert len(exchanges) == 2
    assert not any("/while/" in each for each in exchanges)


def test_each_device_drops_other_places(in_xla):
    (alone, _), _ = in_xla(xla_parts.exchanged, 1, 8, 0.1)
    (together, _), _ = in_xla(xla_parts.exchanged, 2, 8, 0.1)
    assert abs(together - 2 * alone) > 1e-4

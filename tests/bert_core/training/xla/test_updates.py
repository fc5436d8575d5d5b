"""The update in optax is torch's, and moments go there and back."""

import pytest
import xla_parts


@pytest.mark.parametrize(("name", "with_decay"), [("adamw", True), ("lamb", True), ("lamb", False)])
def test_updates_on_both_sides_in_turn_are_those_of_torch(in_xla, name, with_decay):
    weights, moments = in_xla(xla_parts.updated, name, with_decay)
    assert weights < 2e-6
    assert moments < 1e-5


def test_what_has_no_counterpart_is_refused(in_xla):
    assert in_xla(xla_parts.refused_optimizers) == [
        "no update in optax for SGD",
        "several weight decays: [0.1, 0.2]",
        "groups of different betas: [(0.9, 0.999), (0.8, 0.999)]",
        "parameters have made different numbers of steps",
    ]

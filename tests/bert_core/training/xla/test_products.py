"""Attention in JAX is torch's, forward and backward."""

import numpy as np
import pytest
import xla_parts


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_torch(in_xla, causal):
    expected, found, gradients, ours = in_xla(xla_parts.attended, causal)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    for one, other in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_dropout_drops_its_share_and_keeps_the_mean(in_xla):
    kept, mean = in_xla(xla_parts.attention_dropped, 0.25)
    assert kept == pytest.approx(0.75, abs=0.02)
    assert mean == pytest.approx(1, abs=0.02)

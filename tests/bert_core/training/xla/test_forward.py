"""The loss in JAX: torch's numbers, and products in the type they should have."""

import torch
import xla_parts


def test_every_product_is_in_bfloat16_and_gradients_in_float32(in_xla):
    kinds, found = in_xla(xla_parts.kinds_of_products, torch.bfloat16)
    # Two layers, two heads: 16 products forward, each with two backward.
    assert len(kinds) == 3 * (2 * 6 + 4)
    assert {kind for both in kinds for kind in both} == {"bfloat16"}
    assert found == {"float32"}


def test_without_a_type_every_product_is_in_float32(in_xla):
    kinds, found = in_xla(xla_parts.kinds_of_products, None)
    assert {kind for both in kinds for kind in both} == found == {"float32"}


def test_loss_and_gradients_are_those_of_torch_of_either_kind_of_model(in_xla):
    for name, (loss, expected, gradients) in in_xla(xla_parts.losses_of_models).items():
        assert abs(loss - expected) < 1e-5, name
        assert gradients < 1e-5, name


def test_the_key_says_what_is_dropped(in_xla):
    first, again, other = in_xla(xla_parts.losses_of_keys)
    assert first == again
    assert abs(first - other) > 1e-4

"""The loss in JAX: torch's numbers, and products in the type they should have."""

import torch
import xla_parts
from static_batches import LENGTH


def test_every_product_is_in_bfloat16_and_gradients_in_float32(in_xla):
    kinds, found = in_xla(xla_parts.kinds_of_products, torch.bfloat16)
    # Two layers and two heads: 16 products forward, each with two backward; scores once more.
    assert len(kinds) == 3 * (2 * 6 + 4) + 2
    assert {kind for both in kinds for kind in both} == {"bfloat16"}
    assert found == {"float32"}


def test_without_a_type_every_product_is_in_float32(in_xla):
    kinds, found = in_xla(xla_parts.kinds_of_products, None)
    assert {kind for both in kinds for kind in both} == found == {"float32"}


def test_what_is_computed_on_the_way_is_not_kept(in_xla):
    kept, num_tokens = in_xla(xla_parts.kept_for_backward, torch.bfloat16)
    squares = [shape for shape, _ in kept if len(shape) == 4 and shape[2:] == (LENGTH, LENGTH)]
    assert not squares, "probabilities"
    inner, hidden = 64, 32
    wide = [kind for shape, kind in kept if shape == (num_tokens, inner)]
    # Of the first layer; of the last one only the tokens that a head reads go so far.
    assert wide == ["bfloat16"] * 2, "what GELU reads and makes"
    narrow = [kind for shape, kind in kept if shape == (num_tokens, hidden)]
    # What three norms read, and what is dropped behind the first: the embeddings' own.
    assert narrow.count("float32") == 4


def test_loss_and_gradients_are_those_of_torch_of_either_kind_of_model(in_xla):
    for name, (loss, expected, gradients) in in_xla(xla_parts.losses_of_models).items():
        assert abs(loss - expected) < 1e-5, name
        assert gradients < 1e-5, name


def test_the_key_says_what_is_dropped(in_xla):
    first, again, other = in_xla(xla_parts.losses_of_keys)
    assert first == again
    assert abs(first - other) > 1e-4

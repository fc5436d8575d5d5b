import pytest
from pydantic import ValidationError

from bert_core.config import SIZES, ModelConfig


def test_sizes_are_the_published_ones():
    shapes = {
        name: (size.num_hidden_layers, size.hidden_size, size.num_attention_heads)
        for name, size in SIZES.items()
    }
    assert shapes == {
        "tiny": (2, 128, 2),
        "mini": (4, 256, 4),
        "small": (4, 512, 8),
        "medium": (8, 512, 8),
        "base": (12, 768, 12),
        "large": (24, 1024, 16),
    }
    assert all(size.intermediate_size == 4 * size.hidden_size for size in SIZES.values())
    assert SIZES["base"] == ModelConfig()


def test_refuses_an_unknown_field_and_heads_that_do_not_divide():
    with pytest.raises(ValidationError, match="hidden_sizes"):
        ModelConfig.model_validate({"hidden_sizes": 128})
    with pytest.raises(ValidationError, match="not a multiple"):
        ModelConfig(hidden_size=100, num_attention_heads=12)


def test_head_size():
    assert ModelConfig().head_size == 64

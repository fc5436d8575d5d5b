"""Limits are described, and no limit is none."""

import pytest
from pydantic import ValidationError

from serving.limits import Limits


@pytest.mark.parametrize("name", Limits.model_fields)
def test_a_limit_is_described_and_positive(name):
    assert Limits.model_fields[name].description
    assert getattr(Limits(), name) > 0
    with pytest.raises(ValidationError):
        Limits(**{name: 0})

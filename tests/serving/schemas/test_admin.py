"""Which versions may be named by those who steer."""

import pytest
from pydantic import ValidationError

from serving.pointers import Address
from serving.schemas.admin import BesideRequest


@pytest.mark.parametrize("address", ["models:/a@b", "models:/a name.1/3", "models:/é@ü", None])
@pytest.mark.parametrize("share", [0.1, 1])
def test_addresses_of_the_registry_are_taken(address, share):
    request = BesideRequest(model=address, share=share)
    assert request.model is None or str(Address.of(request.model)) == address


@pytest.mark.parametrize(
    "given",
    [
        {"model": "/etc", "share": 0.1},
        {"model": "models:/a", "share": 0.1},
        {"model": "models:/a/b", "share": 0.1},
        {"model": "models:/../a@b", "share": 0.1},
        {"model": "models:/a@b\n", "share": 0.1},
        {"model": "models:/a\nmodels:/c@b", "share": 0.1},
        {"model": "models:/a\x85@b", "share": 0.1},
        {"model": "runs:/a@b", "share": 0.1},
        {"model": "models:/a@b"},
        {"model": "models:/a@b", "share": 0},
        {"model": "models:/a@b", "share": 1.01},
        {"model": "models:/a@b", "share": float("nan")},
        {"model": "models:/a@b", "share": "0.1"},
        {"model": "models:/a@b", "share": 0.1, "more": 1},
    ],
)
def test_anything_else_is_not(given):
    with pytest.raises(ValidationError):
        BesideRequest.model_validate(given)

"""What results say of themselves."""

import base64

import numpy as np
import pytest
from pydantic import ValidationError

from serving.client.results import Classified, Features

READ = {"n_tokens": 3, "truncated": False, "model": "m", "version": "7"}


def test_a_result_shows_what_was_found_first():
    found = Classified(label="good", **READ)
    shown = "label='good' n_tokens=3 truncated=False model='m' version='7'"
    assert str(found) == shown and repr(found) == f"Classified({shown.replace(' ', ', ')})"


def test_vectors_are_little_endian_whatever_the_machine_is():
    encoded = base64.b64encode(np.array([1.5, -2], "<f4").tobytes()).decode()
    found = Features(vector=encoded, dimensions=2, **READ)
    assert found.vector.dtype == np.float32 and found.vector.tolist() == [1.5, -2.0]
    assert found.vectors.tolist() == [[1.5, -2.0]]
    with pytest.raises(ValidationError):
        Features(vector="no base64!", dimensions=2, **READ)

from pathlib import Path

import pytest

from bert_core.errors import UserError
from workflows.quantization.settings import QuantizeSettings
from workflows.settings import parse_command_line

GIVEN = ["--model", "m", "--data", "d"]


def test_every_setting_is_explained():
    assert all(field.description for field in QuantizeSettings.model_fields.values())


def test_the_output_is_needed():
    found = parse_command_line(QuantizeSettings, [*GIVEN, "--output", "o"])
    assert found.output == Path("o") and found.split == "dev"
    with pytest.raises(UserError, match="output"):
        parse_command_line(QuantizeSettings, GIVEN)

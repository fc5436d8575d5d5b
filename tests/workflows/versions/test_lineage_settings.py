import pytest

from bert_core.errors import UserError
from workflows.settings import parse_command_line
from workflows.versions.lineage_settings import LineageSettings


def test_the_model_stands_alone_and_json_is_asked_for():
    settings = parse_command_line(LineageSettings, ["cats@champion", "--json"])
    assert (settings.model, settings.json_, settings.tracking_uri) == ("cats@champion", True, None)
    assert not parse_command_line(LineageSettings, ["--storage", "a", "cats/1"]).json_


@pytest.mark.parametrize("given", [[], ["cats/1", "dogs/1"], ["cats/1", "--jsn"]])
def test_anything_else_is_refused(given):
    with pytest.raises(UserError):
        parse_command_line(LineageSettings, given)

from workflows.evaluate_settings import EvaluateSettings
from workflows.settings import parse_command_line


def test_every_setting_is_explained_and_columns_are_a_list():
    assert all(field.description for field in EvaluateSettings.model_fields.values())
    given = ["--model", "m", "--data", "d", "--slice_by", "a", "--slice_by", "b"]
    assert parse_command_line(EvaluateSettings, given).slice_by == ["a", "b"]

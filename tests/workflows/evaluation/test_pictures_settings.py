from workflows.paper.suite_settings import PicturesSettings
from workflows.settings import parse_command_line


def test_defaults_need_no_more_than_model_data_and_report():
    given = ["--model", "m", "--data", "d", "--report", "r"]
    settings = parse_command_line(PicturesSettings, given)
    assert (settings.task, settings.projection, settings.layers) == ("conll2003", "tsne", [])


def test_every_setting_is_explained():
    assert all(field.description for field in PicturesSettings.model_fields.values())

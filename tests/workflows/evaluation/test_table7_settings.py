import pytest

from bert_core.errors import UserError
from workflows.paper.suite_settings import Table7Settings
from workflows.settings import parse_command_line


def test_the_defaults_are_the_papers():
    settings = parse_command_line(Table7Settings, ["--model", "m", "--data", "d"])
    assert settings.seeds == 5
    assert (settings.tagger.lstm_size, settings.tagger.lstm_layers) == (768, 2)
    assert (settings.batch_size, settings.finetuning_epochs) == (32, 3)


def test_every_setting_is_explained():
    sections = {"tagger", "cluster"}
    fields = Table7Settings.model_fields.items()
    assert all(field.description for name, field in fields if name not in sections)


def test_a_setting_of_a_single_run_is_refused():
    with pytest.raises(UserError, match="unknown setting"):
        parse_command_line(Table7Settings, ["--model", "m", "--data", "d", "--strategy", "last"])

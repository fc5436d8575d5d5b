import pytest

from bert_core.errors import UserError
from workflows.evaluation.settings import OF_ONE_MODEL, EvaluateSettings
from workflows.settings import parse_command_line

SUITE = ["--suite", "glue", "--data", "d", "--model-root", "m"]


def test_every_setting_is_explained_and_columns_are_a_list():
    assert all(field.description for field in EvaluateSettings.model_fields.values())
    given = ["--model", "m", "--data", "d", "--slice_by", "a", "--slice_by", "b"]
    assert parse_command_line(EvaluateSettings, given).slice_by == ["a", "b"]


@pytest.mark.parametrize("option", ["--model_root", "--model-root"])
def test_a_suite_has_a_folder_of_models_and_no_model(option):
    settings = parse_command_line(EvaluateSettings, [*SUITE[:4], option, "m"])
    assert (settings.suite, str(settings.model_root), settings.model) == ("glue", "m", "")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["--data", "d"], "no model: --model .give one, or --suite glue --model_root DIR"),
        (["--model", "m"], "Field required: --data"),
        (SUITE[2:], "models without a suite: --model_root .give --suite glue"),
        (SUITE[:4], "no models: --suite glue .give --model_root"),
        *(([*SUITE, f"--{name}", "x=y"], f"--{name} is for one model") for name in OF_ONE_MODEL),
    ],
)
def test_wrong_combinations_are_refused(given, match):
    with pytest.raises(UserError, match=match):
        parse_command_line(EvaluateSettings, given)


def test_the_settings_of_one_model_are_there():
    assert set(OF_ONE_MODEL) < set(EvaluateSettings.model_fields)

import pytest

from workflows.inference.extract_settings import ExtractSettings
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.text_parts_settings import OF_ONE_START, TextPartsSettings


@pytest.mark.parametrize("settings_class", [ExtractSettings, PredictSettings])
def test_what_may_change_between_starts_are_settings_of_both(settings_class):
    shared = TextPartsSettings.model_fields.keys()
    assert {*OF_ONE_START} < shared < settings_class.model_fields.keys()
    changes = {"input", "text_column", "id_column", "precision", "part_bytes"}
    assert shared - {*OF_ONE_START} == changes, "what results depend on"

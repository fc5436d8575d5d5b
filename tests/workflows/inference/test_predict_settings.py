from typing import get_args

import pytest

from bert_core.errors import UserError
from bert_core.tasks import text_tagging
from serving.schemas import fields
from serving.schemas.tasks import ClassifyRequest, NerRequest, QaRequest
from workflows.inference import predict_settings
from workflows.inference.predict_settings import PredictSettings
from workflows.settings import parse_command_line

GIVEN = ["--model", "m", "--output", "o", "--input", '["a.txt"]']


def test_the_options_are_those_of_http():
    asked = {
        name
        for request in (ClassifyRequest, NerRequest, QaRequest)
        for name in request.model_fields
        if name != "inputs"
    }
    assert asked <= PredictSettings.model_fields.keys()
    assert get_args(predict_settings.OverflowOrError) == get_args(fields.OverflowOrError)
    assert get_args(predict_settings.Aggregation) == get_args(text_tagging.Aggregation)


def test_nothing_is_cut_by_default():
    assert parse_command_line(PredictSettings, GIVEN).overflow == "window"


@pytest.mark.parametrize("option", [["--top_k", "0"], ["--max_answer_length", "513"]])
def test_what_http_refuses_is_refused(option):
    with pytest.raises(UserError, match=option[0]):
        parse_command_line(PredictSettings, [*GIVEN, *option])


def test_every_setting_is_explained():
    assert all(field.description for field in PredictSettings.model_fields.values())

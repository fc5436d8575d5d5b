"""The choices that clients have are those that there are."""

from bert_core import masked_language_model
from bert_core.features import units
from bert_core.tasks import text_tagging
from serving.schemas import choices


def test_choices_are_those_of_the_models():
    assert choices.Aggregation == text_tagging.Aggregation
    assert choices.Masking == masked_language_model.Masking
    assert choices.Pooling == units.Pooling
    assert choices.Unit == units.Unit

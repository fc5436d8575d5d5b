"""The choices that clients have are those that there are."""

from bert_core.features import units
from bert_core.pretrained import pseudo_perplexity
from bert_core.tasks import text_tagging
from serving.schemas import choices


def test_choices_are_those_of_the_models():
    assert choices.Aggregation == text_tagging.Aggregation
    assert choices.Masking == pseudo_perplexity.Masking
    assert choices.Pooling == units.Pooling
    assert choices.Unit == units.Unit

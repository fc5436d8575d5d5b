"""The families of models that are computed here."""

from bert_core.config import ModelConfig
from bert_core.hugging_face.bert import BERT
from bert_core.hugging_face.family import Family
from bert_core.hugging_face.modern_bert import MODERN_BERT
from bert_core.hugging_face.roberta import ROBERTA_FAMILIES

FAMILIES = {family.model_type: family for family in (BERT, *ROBERTA_FAMILIES, MODERN_BERT)}
"""By `model_type` of config.json."""


def family_of(config: ModelConfig) -> Family:
    """The family in whose form a model of this architecture is written."""
    (family,) = [each for each in (BERT, MODERN_BERT) if each.config is type(config)]
    return family

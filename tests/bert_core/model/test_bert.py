import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from bert_core.config import SIZES
from bert_core.model.bert import Bert

PARAMETERS = {
    "tiny": (4_385_920, 4_433_468),
    "mini": (11_170_560, 11_267_900),
    "small": (28_763_648, 29_058_876),
    "medium": (41_373_184, 41_668_412),
    "base": (109_482_240, 110_106_428),  # the paper's 110 M
    "large": (335_141_888, 336_226_108),  # the paper's 340 M
}
"""Encoder with pooler, and with both pre-training heads; the tied projection counted once."""


@pytest.mark.parametrize("size", SIZES)
def test_parameters_to_the_unit(size):
    with torch.device("meta"):
        ours = Bert.for_pretraining(SIZES[size])
        values = SIZES[size].model_dump(exclude={"position_embedding"})
        theirs = BertForPreTraining(BertConfig(**values))
    counts = {
        name: sum(parameter.numel() for parameter in module.parameters())
        for name, module in (("all", ours), ("encoder", ours.encoder), *ours.heads.items())
    }
    assert (counts["encoder"] + counts["pooler"], counts["all"]) == PARAMETERS[size]
    assert (theirs.bert.num_parameters(), theirs.num_parameters()) == PARAMETERS[size]


def test_heads_are_those_asked_for(small_config):
    assert list(Bert.for_pretraining(small_config).heads) == [
        "masked_token",
        "pooler",
        "next_sentence",
    ]
    assert list(Bert.for_pretraining(small_config, next_sentence=False).heads) == ["masked_token"]
    decoder = small_config.model_copy(update={"is_decoder": True})
    assert list(Bert.for_pretraining(decoder).heads) == ["next_token"]


def test_the_seed_decides_the_weights(small_config):
    torch.manual_seed(4)
    first = Bert.for_pretraining(small_config).state_dict()
    torch.manual_seed(4)
    again = Bert.for_pretraining(small_config).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)

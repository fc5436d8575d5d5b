"""A tagging task whose tags follow from the words, and an encoder to read them with."""

from random import Random

import pytest
import torch

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tokenizer_training import train_wordpiece

TAGS = {"the": "O", "cats": "O", "sat": "O", "Anna": "B-PER", "Bob": "B-PER", "Rome": "B-LOC"}


@pytest.fixture(scope="session")
def tokenizer():
    return train_wordpiece([" ".join(TAGS)] * 3, 50, lowercase=True)


@pytest.fixture(scope="session")
def sentences():
    random = Random(0)
    drawn = [random.choices(list(TAGS), k=random.randrange(1, 9)) for _ in range(40)]
    return [TaggedSentence(words, [TAGS[word] for word in words]) for words in drawn]


@pytest.fixture(scope="session")
def task(sentences):
    return Tagging(max_length=32).with_labels(sentences)


@pytest.fixture
def bert(small_config, tokenizer):
    """A fresh encoder of three layers of 64, whose weights are not small."""
    torch.manual_seed(0)
    size = {"vocab_size": tokenizer.get_vocab_size()}
    model = Bert(Encoder(ModelConfig.model_validate(small_config.model_dump() | size)), {})
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    return model.eval()

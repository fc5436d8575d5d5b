"""`Bert`: one encoder and the heads that stand on it, by name."""

from collections.abc import Mapping
from typing import Self

from torch import nn

from bert_core.config import ModelConfig
from bert_core.model.encoder import Encoder
from bert_core.model.heads import MaskedTokenHead, NextSentenceHead, Pooler


class Bert(nn.Module):
    """An encoder with named heads; a task calls the encoder, then the heads it needs.

    It has no forward of its own: what to compute is the task's choice, not the model's.
    """

    def __init__(self, encoder: Encoder, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    @classmethod
    def for_pretraining(cls, config: ModelConfig, next_sentence: bool = True) -> Self:
        """A fresh model with the masked-token head and, if asked, pooler and next-sentence head.

        Drawn from torch's generator: seed it for a repeatable start.
        """
        heads: dict[str, nn.Module] = {"masked_token": MaskedTokenHead(config)}
        if next_sentence:
            heads |= {"pooler": Pooler(config), "next_sentence": NextSentenceHead(config)}
        return cls(Encoder(config), heads)

    @property
    def config(self) -> ModelConfig:
        """The encoder's architecture."""
        return self.encoder.config

"""`Bert`: one encoder and its heads by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Self

from torch import nn

from bert_core.config import ModelConfig
from bert_core.model.encoder import Encoder
from bert_core.model.heads import Classifier, MaskedTokenHead, NextSentenceHead, Pooler, Span

HEADS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "masked_token": MaskedTokenHead,
    "pooler": Pooler,
    "next_sentence": NextSentenceHead,
    "next_token": MaskedTokenHead,
}
"""The heads of pre-training; their names are those in `Bert.heads` and in the weights.

`next_token` is that of a decoder: at each position it predicts the word after it. It has a name of
its own so that nobody asks it what stands at a [MASK].
"""

TASK_HEADS: dict[str, Callable[[ModelConfig, int], nn.Module]] = {
    "classifier": Classifier,
    "span": Span,
}
"""The heads of fine-tuning, which have as many outputs as the task has answers."""


class Bert(nn.Module):
    """A BERT encoder with named heads; a task calls the encoder, then the heads it needs.

    It has no forward of its own: what to compute is the task's choice, not the model's.

    - `encoder(input_ids, token_type_ids, position_ids, layout)`: three int64 [T] to states [T, H],
      T the tokens of all rows end to end without padding (`layout` is `Packed`), H hidden size
    - `heads`, by name: `masked_token` maps [P, H] and the embeddings [V, H] to logits [P, V],
      `pooler` [R, H] to [R, H], `next_sentence` [R, H] to [R, 2], `classifier` and `span` to one
      logit for each output of the task

    `Predictor` runs a whole model on texts. This runs the encoder on two rows of 3 and 2 tokens:

        from bert_core.model.layout import Packed

        model = Bert.for_pretraining(ModelConfig(num_hidden_layers=2)).eval()
        ids, positions = torch.tensor([2, 7, 3, 2, 3]), torch.tensor([0, 1, 2, 0, 1])
        layout = Packed.from_lengths([3, 2])
        states = model.encoder(ids, torch.zeros_like(ids), positions, layout)  # [5, 768]
    """

    def __init__(self, encoder: Encoder, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    @classmethod
    def for_pretraining(cls, config: ModelConfig, next_sentence: bool = True) -> Self:
        """A fresh model with the masked-token head and, if asked, pooler and next-sentence head.

        A decoder has the next-token head and no other. Drawn from torch's generator: seed it for a
        repeatable start.
        """
        model = cls(Encoder(config), {})
        if config.is_decoder:
            model.add_missing_heads(["next_token"])
        else:
            model.add_missing_heads(["masked_token"])
            model.add_missing_heads(["pooler", "next_sentence"] if next_sentence else [])
        return model

    def add_missing_heads(self, names: Iterable[str]) -> list[str]:
        """Adds a fresh head for each of these names of `HEADS` that has none; gives their names."""
        added = [name for name in names if name not in self.heads]
        for name in added:
            self.heads[name] = HEADS[name](self.config)
        return added

    def add_task_head(self, name: str, num_outputs: int) -> list[str]:
        """Adds a fresh head of `TASK_HEADS` unless one of this size is there; gives its name."""
        head = dict(self.heads.items()).get(name)
        if isinstance(head, Classifier | Span) and head.linear.out_features == num_outputs:
            return []
        self.heads[name] = TASK_HEADS[name](self.config, num_outputs)
        return [name]

    @property
    def config(self) -> ModelConfig:
        """The encoder's architecture."""
        return self.encoder.config

"""`Bert`: one encoder and its heads by name; heads give logits from the encoder's hidden states.

Shapes: H hidden size, V vocabulary, P predicted positions, N sequences, L outputs.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.config import ModelConfig
from bert_core.model.encoder import Encoder, initialize
from bert_core.model.operations import OnDevice
from bert_core.model.word_weights import word_weights


class MaskedTokenHead(OnDevice):
    """Predicts a word at each position, masked or next; it projects on the table of embeddings.

    The table is an argument, not a parameter: the tie is visible where the head is called, and the
    model holds the weights once. A head that is not `is_tied`, of a model made elsewhere, has a
    table of its own and uses that. Transform as in the original implementation.
    """

    def __init__(self, config: ModelConfig, *, is_tied: bool = True) -> None:
        super().__init__()
        biased = config.has_biases
        self.transform = nn.Linear(config.hidden_size, config.hidden_size, bias=biased)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, bias=biased)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder: nn.Linear | None = None
        if not is_tied:
            self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        initialize(self, config.output_range)

    def features(self, hidden_states: Tensor) -> Tensor:
        """What is multiplied with the table: [P, H] from the states [P, H]."""
        return self.norm(F.gelu(self.transform(hidden_states)))

    def table(self, word_embeddings: Tensor) -> Tensor:
        """What the features are multiplied with, [V, H]: the word embeddings, or its own table."""
        return word_embeddings if self.decoder is None else self.decoder.weight

    def loss(
        self, hidden_states: Tensor, word_embeddings: Tensor, labels: Tensor, count: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of `labels` [P] over `count`, and how many are right.

        `labels` are int64, IGNORE_INDEX where a position carries none. The logits need not exist
        at once.
        """
        features, table = self.features(hidden_states), self.table(word_embeddings)
        return self.operations.vocabulary_cross_entropy(features, table, self.bias, labels, count)

    def word_weights(
        self, hidden_states: Tensor, word_embeddings: Tensor, place_counts: Tensor
    ) -> Tensor:
        """How much each word says of each row, [N, V]; rows have `place_counts` [N] states [P, H].

        See `bert_core.model.word_weights`.
        """
        features, table = self.features(hidden_states), self.table(word_embeddings)
        return word_weights(features, table, self.bias, place_counts.tolist())

    def forward(self, hidden_states: Tensor, word_embeddings: Tensor) -> Tensor:
        """Logits [P, V] over the vocabulary for the states [P, H] of the positions asked for."""
        return F.linear(self.features(hidden_states), self.table(word_embeddings), self.bias)


class Pooler(nn.Module):
    """Summarises a sequence: tanh of a linear map of its first token's state, that of [CLS]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialize(self, config.initializer_range)

    def forward(self, first_states: Tensor) -> Tensor:
        """One vector per sequence, [N, H], from the states [N, H] of their first tokens."""
        return self.dense(first_states).tanh()


class Transform(nn.Module):
    """What each head of the modern block begins with: a linear map, GELU and layer norm.

    Its pooler, which tasks that label single tokens read too.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.has_biases)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, bias=config.has_biases)
        initialize(self, config.output_range)

    def forward(self, states: Tensor) -> Tensor:
        """Transformed states, [P, H], of states [P, H]."""
        return self.norm(F.gelu(self.dense(states)))


def pooler(config: ModelConfig) -> nn.Module:
    """The module through which a task's head reads states of an encoder of this kind."""
    return Transform(config) if config.transforms_every_state else Pooler(config)


class NextSentenceHead(nn.Module):
    """Decides whether segment B follows segment A: logits for 0 (IsNext) and 1 (NotNext)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 2)
        initialize(self, config.initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:
        """Logits [N, 2] of pooled sequences [N, H]."""
        return self.classifier(pooled)


class Classifier(OnDevice):
    """Scores answers: dropout and a linear map, of pooled sequences or of single tokens' states."""

    def __init__(self, config: ModelConfig, num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, num_outputs)
        self.dropout = config.hidden_dropout_prob
        initialize(self, config.initializer_range)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [P, L] of states [P, H]."""
        return self.linear(self.operations.dropout(states, self.dropout, self.training))


class Span(nn.Module):
    """Scores each token as the first and as the last of an answer (section 4.2 of the paper)."""

    def __init__(self, config: ModelConfig, num_outputs: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, num_outputs)
        initialize(self, config.initializer_range)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [P, 2] of states [P, H]: start, end."""
        return self.linear(states)


class TextVectors(nn.Module):
    """Makes one vector of each row: the mean of the states at its places. It has no weights."""

    def forward(self, states: Tensor, place_counts: Tensor) -> Tensor:
        """Vectors [N, H] of states [P, H], row after row; `place_counts` [N], 1 at least."""
        return torch.segment_reduce(states, "mean", lengths=place_counts, axis=0)


HEADS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "masked_token": MaskedTokenHead,
    "pooler": pooler,
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

VECTORS, WORDS = "vectors", "masked_token"
"""The heads of tasks whose answer is a text's vector: of states, or of weights of words."""


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
        """Adds a head for each of these names of `HEADS` that has none; gives those drawn anew.

        A transform is not drawn where the masked-token head has learned one: it begins as that.
        """
        drawn = []
        for name in names:
            if name in self.heads:
                continue
            head = HEADS[name](self.config)
            learned = dict(self.heads.items()).get("masked_token")
            if isinstance(head, Transform) and isinstance(learned, MaskedTokenHead):
                head.dense.load_state_dict(learned.transform.state_dict())
                head.norm.load_state_dict(learned.norm.state_dict())
            else:
                drawn.append(name)
            self.heads[name] = head
        return drawn

    def add_task_head(self, name: str, num_outputs: int) -> list[str]:
        """Adds a fresh head of `TASK_HEADS` unless one of this size is there; gives its name.

        That of vectors has no weights that could be drawn, and no size of its own; that of words
        is of pre-training.
        """
        if name == VECTORS:
            self.heads[name] = TextVectors()
            return []
        if name == WORDS:
            return self.add_missing_heads([name])
        head = dict(self.heads.items()).get(name)
        if isinstance(head, Classifier | Span) and head.linear.out_features == num_outputs:
            return []
        self.heads[name] = TASK_HEADS[name](self.config, num_outputs)
        return [name]

    @property
    def config(self) -> ModelConfig:
        """The encoder's architecture."""
        return self.encoder.config

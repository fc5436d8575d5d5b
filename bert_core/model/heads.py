"""Heads: logits from the hidden states of the encoder.

Shapes: H hidden size, V vocabulary, P predicted positions, N sequences, L outputs.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bert_core.config import ModelConfig
from bert_core.model.encoder import initialize
from bert_core.model.operations import OnDevice


class MaskedTokenHead(OnDevice):
    """Predicts a word at each position, masked or next; it projects on the table of embeddings.

    The table is an argument, not a parameter: the tie is visible where the head is called, and the
    model holds the weights once. A head that is not `is_tied`, of a model made elsewhere, has a
    table of its own and uses that. Transform as in the original implementation.
    """

    def __init__(self, config: ModelConfig, *, is_tied: bool = True) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder: nn.Linear | None = None
        if not is_tied:
            self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        initialize(self, config.initializer_range)

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

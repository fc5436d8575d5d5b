"""The pre-training heads as functions of states, for those who compute many questions at once.

Shapes: P places, H hidden size, V vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor

from bert_core.model.bert import Bert


def masked_token_answers(model: Bert, states: Sequence[Tensor], place_counts: Tensor) -> Tensor:
    """Logits [P, V] over the vocabulary, of the last layer's states [P, H]."""
    del place_counts
    (last,) = states
    return model.heads["masked_token"](last, model.encoder.word_embeddings)


def next_sentence_answers(model: Bert, states: Sequence[Tensor], place_counts: Tensor) -> Tensor:
    """Logits [P, 2], IsNext and NotNext, of the last layer's states [P, H] at [CLS]."""
    del place_counts
    (last,) = states
    return model.heads["next_sentence"](model.heads["pooler"](last))

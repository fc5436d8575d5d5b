"""Which tokens an answer hangs on: the gradient of an output times the input it is of.

Shapes: n tokens of one row, P places, L outputs of the head, H hidden size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bert_core.model.bert import Bert
from bert_core.tasks.encoded_rows import TaskBatch
from bert_core.tasks.task import head_answers, layers_read, places_read


def gradient_times_input(
    model: Bert, batch: TaskBatch, chosen: Callable[[Tensor], Tensor]
) -> Tensor:
    """How much each token's word adds to an output, to first order, [n] (Shrikumar et al. 2016).

    `batch` is one row, in the packed layout; `chosen` picks a number, 0-d, from the head's outputs
    [P, L]. The model is left as it is: neither its gradients nor its weights are touched, so that
    others may compute with it meanwhile.
    """
    encoder = model.encoder
    with torch.enable_grad():
        words = encoder.word_embeddings.detach()[batch.input_ids].requires_grad_()
        states = encoder.states_of(
            encoder.embeddings.of_words(words, batch.token_type_ids, batch.position_ids),
            batch.layout,
            layers=layers_read(model),
            places=places_read(encoder, batch),
        )
        output = chosen(head_answers(model, states, batch.place_counts))
        (gradient,) = torch.autograd.grad(output, words)
    return (gradient * words.detach()).sum(-1)

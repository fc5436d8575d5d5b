import numpy as np
import torch

from bert_core.features.states import states_at_places

CPU = torch.device("cpu")


def test_every_item_once_in_order_of_length_and_as_the_encoder_has_it(
    bert, task, tokenizer, sentences
):
    rows = task.encode(sentences, tokenizer)
    bert.encoder.train()
    seen = []
    for items, batch, states in states_at_places(
        bert.encoder, rows, (2, 0), device=CPU, max_tokens=30, autocast_dtype=None
    ):
        seen += items.tolist()
        expected = bert.encoder.hidden_states(
            batch.input_ids,
            batch.token_type_ids,
            batch.position_ids,
            batch.layout,
            layers=(2, 0),
            places=batch.places,
        )
        assert not any(each.requires_grad for each in states)
        for left, right in zip(states, expected, strict=True):
            torch.testing.assert_close(left, right)
    assert sorted(seen) == list(range(rows.num_items))
    assert (np.diff(rows.item_lengths[seen]) <= 0).all()
    assert bert.encoder.training

import numpy as np
import torch

from bert_core.features.rows import FeatureRows


def test_a_batch_brings_the_states_of_its_places(task, tokenizer, sentences):
    rows = task.encode(sentences, tokenizer)
    numbers = np.arange(len(rows.places), dtype=np.float32)
    states = [np.stack([numbers, -numbers], axis=1), np.stack([numbers * 2, numbers], axis=1)]
    items = np.array([7, 2, 30])
    plain = rows.batch(items, "packed")
    batch = FeatureRows.of(rows, states).batch(items, "packed")
    assert batch.states.shape == (2, len(plain.places), 2)
    found = batch.states[0, :, 0].long().numpy()
    assert torch.equal(torch.from_numpy(rows.labels[found]), batch.labels)
    np.testing.assert_array_equal(found, rows.places_of(items))
    assert torch.equal(batch.states[1, :, 0], 2 * batch.states[0, :, 0])
    for name in ("input_ids", "places", "place_counts", "labels"):
        assert torch.equal(getattr(batch, name), getattr(plain, name)), name
    assert batch.num_real_tokens == plain.num_real_tokens


def test_a_batch_without_labels_teaches_nothing(task, tokenizer, sentences):
    rows = task.encode(sentences, tokenizer)
    states = [np.zeros((len(rows.places), 2), np.float16)]
    batch = FeatureRows.of(rows, states).batch(np.array([0]), "packed", without_labels=True)
    assert (batch.labels < 0).all()
    assert batch.states.shape[1] == rows.place_counts[0]

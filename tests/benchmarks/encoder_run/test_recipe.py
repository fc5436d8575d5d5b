from dataclasses import replace

import pytest
from synthetic_shards import synthetic_shards, vocabulary

from benchmarks.encoder_run.recipe import RECIPES, chosen_recipe
from bert_core.model.bert import Bert


def test_packed_steps_are_full_micro_batches_of_one_shape():
    """So the program that is compiled is one, and computes hardly any padding."""
    recipe, shards = replace(RECIPES["small"], step_slots=16_384), synthetic_shards()
    batch = recipe.batch(packed=True)
    source = recipe.source(shards, vocabulary(), batch=batch, static=True)
    shapes, slots, tokens, rows = set(), [], 0, 0
    for step in range(0, 40, 4):
        batches = source.step(step)
        rows += batches.num_rows
        for each in batches.micro_batches:
            shapes.add((each.input_ids.shape, each.masked_ids.shape, each.next_sentence.shape))
            slots.append(each.num_slots)
            tokens += each.num_real_tokens
    assert tokens > 0.97 * sum(slots)
    assert len(shapes) == 1
    assert 0.7 * 16_384 < sum(slots) / 10 <= 16_384
    assert rows / 10 == pytest.approx(128, rel=0.1)


def test_elsewhere_a_step_has_as_many_rows_as_would_fill_it():
    recipe, shards = replace(RECIPES["small"], step_slots=65_536), synthetic_shards()
    batch = recipe.batch(packed=False)
    assert batch.global_batch_size == 65_536 // 128 and not batch.packed
    source = recipe.source(shards, vocabulary(), batch=batch, static=False)
    sizes = [each.num_slots for each in source.step(0).micro_batches]
    assert len(sizes) == 8 and max(sizes) <= 64 * 128


@pytest.mark.parametrize(("preset", "millions"), [("tiny", 4), ("small", 28), ("base", 109)])
def test_the_encoder_has_the_size_of_its_name(preset, millions):
    config = RECIPES[preset].architecture(vocabulary())
    assert config.attention_probs_dropout_prob == 0  # the packed attention of CUDA has none
    if preset != "base":  # half a gigabyte
        parameters = sum(each.numel() for each in Bert.for_pretraining(config).parameters())
        assert parameters / 1e6 == pytest.approx(millions, abs=1)
    else:
        assert (config.num_hidden_layers, config.hidden_size) == (12, 768)


def test_what_is_not_given_stays():
    changed = chosen_recipe("mini", {"peak_learning_rate": 5e-4, "step_slots": None})
    assert changed == replace(RECIPES["mini"], peak_learning_rate=5e-4)

"""A small BERT and batches of shapes that never change, as an accelerator gets them."""

from synthetic_shards import synthetic_shards, vocabulary

from bert_core.config import ModelConfig
from bert_core.settings import BatchSettings, RowSettings
from bert_core.text.batches import BatchSource

WORDS = 120  # no multiple of 64
LENGTH = 32


def small_bert(**changes):
    """Two layers of 32 with hidden dropout, and none on attention, as packed rows need it."""
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": LENGTH,
        "attention_probs_dropout_prob": 0.0,
    }
    return ModelConfig(**sizes | changes)


def static_source(*, packed, rows=12, micro_batch=4, shards=None):
    """Steps of `rows` rows in micro-batches of `micro_batch`, all of them of one shape."""
    return BatchSource(
        shards or synthetic_shards(1, 300, longest_sentence=9, vocab_size=WORDS),
        vocabulary(WORDS),
        rows=RowSettings(short_row_share=0.5),
        batch=BatchSettings(global_batch_size=rows, micro_batch_size=micro_batch, packed=packed),
        sequence_length=LENGTH,
        seed=0,
        phase=0,
        static_shapes=True,
    )

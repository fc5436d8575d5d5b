"""The heads say what those of `transformers` say."""

import numpy as np
import torch

from bert_core.pretrained.heads import next_sentence_answers
from bert_core.tasks.classification import Classification, Text


def test_the_next_sentence_is_judged_as_by_transformers(opened, published, outputs_of):
    _, tokenizer = opened
    pairs = [("the cat sat", "on a mat"), ("dogs run", "far away slowly the cat")]
    task = Classification(labels=("is_next", "not_next"), second_column="second")
    rows = task.encode([Text(*pair, None) for pair in pairs], tokenizer)
    found = outputs_of(rows, next_sentence_answers)
    for pair, logits in zip(pairs, found, strict=True):
        encoding = tokenizer.encode(*pair)
        with torch.inference_mode():
            wanted = published(
                input_ids=torch.tensor([encoding.ids]),
                token_type_ids=torch.tensor([encoding.type_ids]),
            ).seq_relationship_logits
        np.testing.assert_allclose(logits, wanted[0].numpy(), atol=1e-4)

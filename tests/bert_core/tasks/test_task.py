from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.task import add_task_head, compute_outputs


def test_the_encoder_and_a_fitting_head_stay_all_else_goes(small_config):
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_config)
    pooler = model.heads["pooler"].dense.weight
    two = Classification(labels=("a", "b"))
    assert add_task_head(model, two) == ["classifier"]
    assert set(model.heads) == {"pooler", "classifier"}
    assert model.heads["pooler"].dense.weight is pooler
    weight = model.heads["classifier"].linear.weight
    assert add_task_head(model, two) == [] and model.heads["classifier"].linear.weight is weight
    assert add_task_head(model, Classification(labels=("a", "b", "c"))) == ["classifier"]
    assert model.heads["classifier"].linear.weight.shape == (3, 64)
    assert add_task_head(Bert(Encoder(small_config), {}), two) == ["pooler", "classifier"]


def test_what_a_decoder_says_of_a_text_hangs_on_all_of_it(small_config):
    rows = EncodedRows(
        input_ids=np.array([5, 6, 7, 8, 9, 10]),
        lengths=np.array([4, 2]),
        first_lengths=np.array([4, 2]),
        places=np.array([0, 0]),
        place_counts=np.array([1, 1]),
        labels=np.array([0, 1]),
        labels_per_item=np.array([1, 1]),
        rows_per_item=np.array([1, 1]),
        example=np.array([0, 1]),
        num_tokens=np.array([4, 2]),
        truncated=np.array([False, False]),
        notes={},
    )
    changed = replace(rows, input_ids=np.array([5, 6, 7, 11, 9, 10]))
    for is_decoder in (False, True):
        torch.manual_seed(0)
        model = Bert(Encoder(small_config.model_copy(update={"is_decoder": is_decoder})), {})
        add_task_head(model, Classification(labels=("a", "b")))
        model.eval()
        found, other = (
            compute_outputs(model, each.batch(np.arange(2), "packed")) for each in (rows, changed)
        )
        assert not torch.allclose(found[0], other[0]), "its last token decides too"
        assert torch.allclose(found[1], other[1])


def test_labels_given_are_not_learned():
    texts = [Text("x", None, label) for label in ("10", "9", "b", "a")]
    assert Classification().with_labels(texts).labels == ("a", "b", "9", "10")
    assert Classification(labels=("z",)).with_labels(texts).labels == ("z",)
    assert Classification(kind="regression").with_labels(texts).labels == ()


def test_settings_that_no_task_has_are_refused():
    with pytest.raises(ValueError, match="colour"):
        Classification(colour="red")  # pyright: ignore[reportCallIssue]

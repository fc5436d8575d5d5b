import pytest
import torch

from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.task import add_task_head


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


def test_labels_given_are_not_learned():
    texts = [Text("x", None, label) for label in ("10", "9", "b", "a")]
    assert Classification().with_labels(texts).labels == ("a", "b", "9", "10")
    assert Classification(labels=("z",)).with_labels(texts).labels == ("z",)
    assert Classification(kind="regression").with_labels(texts).labels == ()


def test_settings_that_no_task_has_are_refused():
    with pytest.raises(ValueError, match="colour"):
        Classification(colour="red")  # pyright: ignore[reportCallIssue]

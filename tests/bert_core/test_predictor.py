import numpy as np
import pytest
import torch

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model_folder import ModelFolderError, save_model_folder
from bert_core.predictor import Predictor, compute_all_outputs, layout_for, load_predictor
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.conll import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head, compute_outputs, task_loss
from bert_core.tasks.text_tagging import TextTagging
from bert_core.tokenizer import train_wordpiece

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TEXTS = [Text("one two " * n, None, answer) for n, answer in ((1, "a"), (9, "b"), (4, None))]


@pytest.fixture
def tokenizer():
    return train_wordpiece(["one two three"] * 3, 60, lowercase=True)


@pytest.fixture
def task():
    return Classification(labels=("a", "b"))


@pytest.fixture
def model(small_config, task):
    torch.manual_seed(0)
    model = Bert(Encoder(small_config), {})
    add_task_head(model, task)
    return model


@pytest.mark.parametrize("max_tokens", [8, 30, 1000])
def test_outputs_stand_in_the_order_of_the_examples(model, task, tokenizer, max_tokens):
    rows = task.encode(TEXTS, tokenizer)
    model.train()
    outputs, loss = compute_all_outputs(task, model, rows, device=CPU, max_tokens=max_tokens)
    assert model.training, "left as it was"
    model.eval()
    for number in range(3):
        batch = rows.batch(np.array([number]), "packed")
        alone = compute_outputs(model, batch).detach().numpy()
        np.testing.assert_allclose(outputs[number : number + 1], alone, rtol=1e-4, atol=1e-6)
    whole = task_loss(task, model, rows.batch(np.arange(3), "packed"), num_labels=1)[0]
    assert loss == pytest.approx(whole.item(), rel=1e-5)


def test_nothing_to_predict_gives_nothing(model, task, tokenizer):
    outputs, loss = compute_all_outputs(task, model, task.encode([], tokenizer), device=CPU)
    assert outputs.shape == (0, 2) and loss == 0


def test_an_encoder_that_knows_no_task_is_refused(small_config, tokenizer, tmp_path):
    save_model_folder(tmp_path / "model", Bert(Encoder(small_config), {}), tokenizer, card="")
    with pytest.raises(ModelFolderError, match="knows no task.*finetune.py"):
        load_predictor(tmp_path / "model")


def test_rows_are_packed_wherever_attention_can_have_it():
    plain = ModelConfig(attention_probs_dropout_prob=0)
    paper = ModelConfig()
    assert layout_for(paper, CPU, None, training=True) == "packed"
    assert layout_for(paper, CUDA, torch.bfloat16, training=False) == "packed"
    assert layout_for(paper, CUDA, torch.bfloat16, training=True) == "padded"
    assert layout_for(plain, CUDA, torch.bfloat16, training=True) == "packed"
    assert layout_for(plain, CUDA, None, training=True) == "padded"


def test_raw_texts_without_labels_have_no_loss(small_config, tokenizer):
    task = Tagging(labels=("O", "B-X"), max_length=16)
    model = Bert(Encoder(small_config), {})
    add_task_head(model, task)
    predictor = Predictor("ner", task, model, tokenizer, CPU)
    codec = TextTagging(task)
    rows = codec.encode(["one two", "three"], tokenizer)
    found = predictor.answer(codec, rows, ["one two", "three"], max_tokens=8)
    of_words, _ = predictor.predict([TaggedSentence(["one", "two"]), TaggedSentence(["three"])])
    scores = [[each["score"] for each in one["entities"]] for one in found]
    assert scores == [
        pytest.approx([each["score"] for each in one["entities"]], abs=1e-6) for one in of_words
    ]
    assert compute_all_outputs(task, model, rows, device=CPU)[1] == 0

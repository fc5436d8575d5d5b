"""What a model is asked by its example is what any other way of asking it has for an answer."""

import pytest
import torch
from running import write_models

from bert_core.errors import UserError
from bert_core.example import ModelExample, check_example
from bert_core.example_question import (
    VECTOR_NUMBERS,
    answer_of,
    answered_by,
    outputs_of,
    question_of,
)
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model_folder import load_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.answers import classified
from bert_core.tasks.classification import Text

PAIR = {"text": "the cat sat", "text_pair": "dogs run"}
QUESTION = {"question": "the cat", "context": "a mat far away slowly"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


def example(kind, inputs, answer=None):
    return ModelExample(
        kind=kind, inputs=inputs, answer=answer or {}, precision="float32", tolerance=1e-3
    )


def test_a_pair_is_classified_as_by_its_task(folders):
    found = answer_of(folders["paraphrase"], example("classify", PAIR))
    text = Text(PAIR["text"], PAIR["text_pair"], None)
    expected, _ = load_predictor(folders["paraphrase"]).predict([text])
    assert check_example(example("classify", PAIR, found), classified(expected[0])) is None


def test_a_vector_begins_as_the_features_do(folders):
    found = answer_of(folders["encoder"], example("features", "the cat sat on a mat"))
    whole = load_extractor(folders["encoder"], FeatureChoice()).of_texts(["the cat sat on a mat"])
    assert found["vector"] == pytest.approx(whole[0, :VECTOR_NUMBERS].tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("model", "kind", "inputs", "field"),
    [
        ("sentiment", "classify", "the cat", "label"),
        ("grade", "classify", "the cat", "value"),
        ("topics", "classify", "the cat", "labels"),
        ("entities", "ner", "the cat sat on dogs", "entities"),
        ("answers", "qa", QUESTION, "answers"),
        ("encoder", "fill-mask", "the [MASK] sat", "masks"),
    ],
)
def test_an_answer_is_the_folders_own(folders, model, kind, inputs, field):
    mine = answered_by(folders[model], example(kind, inputs))
    assert field in mine.answer
    assert check_example(mine, answer_of(folders[model], mine)) is None
    other = {"entities": "sentiment", "sentiment": "entities"}.get(model, "entities")
    if model != "entities":
        with pytest.raises(UserError, match="another kind of model"):
            answer_of(folders[other], mine)


def test_other_weights_answer_otherwise_and_dropout_is_off(folders):
    mine = answered_by(folders["encoder"], example("fill-mask", "the [MASK] sat"))
    _, model, tokenizer = load_model_folder(
        folders["encoder"], changes={"hidden_dropout_prob": 0.5}
    )
    model.train()
    question = question_of(mine, None, tokenizer, max_length=32)
    rows = question.rows(tokenizer)
    assert check_example(mine, question.answer(outputs_of(model, question, rows), rows)) is None
    assert model.training
    with torch.no_grad():
        model.encoder.layers[0].output.weight.neg_()
    assert check_example(mine, question.answer(outputs_of(model, question, rows), rows))

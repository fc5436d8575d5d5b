"""What is asked of a model; what comes of it is in test_predict.py."""

from dataclasses import replace

import pytest
import torch

from bert_core.errors import UserError
from bert_core.model.strategies import STRATEGIES
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.predictor import load_predictor
from bert_core.tasks.classification import Text
from bert_core.tasks.foreign_models import ForeignClassification
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.squad import Question
from bert_core.text.texts import NamedTexts
from workflows.inference.predict_settings import PredictSettings
from workflows.inference.prediction_request import request_of


@pytest.fixture(scope="module")
def models(small_models):
    """Predictors by name."""
    return {name: load_predictor(path) for name, path in small_models.items() if name != "encoder"}


def ask(predictor, **changed):
    settings = PredictSettings(model="mine", input=["a.txt"], output="out", **changed)
    return request_of(settings, predictor)


def test_the_columns_are_those_that_the_task_reads(models):
    assert ask(models["entities"]).columns == {"text_column": "text"}
    assert ask(models["grade"], text_column="body").columns == {"text_column": "body"}
    pair = {"text_column": "text", "text_pair_column": "text_pair"}
    assert ask(models["paraphrase"]).columns == pair
    assert ask(models["paraphrase"], text_pair_column="b").columns["text_pair_column"] == "b"
    assert [*ask(models["answers"]).columns] == ["context_column", "question_column"]


def test_a_model_that_does_not_say_it_reads_pairs_where_a_column_is_named(models):
    task = ForeignClassification(labels=("a", "b"), published_labels=("a", "b"))
    predictor = replace(models["sentiment"], task=task)
    assert ask(predictor).columns == {"text_column": "text"}
    asked = ask(predictor, text_pair_column="b")
    assert asked.columns == {"text_column": "text", "text_pair_column": "b"}
    assert asked.examples([NamedTexts("a", ("one", "two"))]) == [Text("one", "two", None)]


def test_records_become_examples(models):
    record = NamedTexts("a", ("one", "two"))
    assert ask(models["paraphrase"]).examples([record]) == [Text("one", "two", None)]
    assert ask(models["answers"]).examples([record]) == [Question("", "two", "one", None)]
    words = NamedTexts("b", (["a", "cat"],))
    assert ask(models["entities"]).examples([words]) == [["a", "cat"]]
    assert ask(models["entities"]).takes(words)
    assert not ask(models["sentiment"]).takes(words)


@pytest.mark.parametrize("model", ["sentiment", "entities", "answers"])
def test_what_would_be_an_error_is_cut_to_be_noticed(models, model):
    codecs = [
        ask(models[model], overflow=overflow).codec(models[model].task)
        for overflow in ("error", "left", "window")
    ]
    assert [each.overflow for each in codecs] == ["right", "left", "window"]


def test_a_tagger_of_words_in_a_row_is_asked_for_first_sub_words(models):
    predictor = load_predictor_with_lstm(models["entities"])
    assert ask(predictor).aggregation == "first"
    with pytest.raises(UserError, match="taught the first sub-words .*--aggregation max"):
        ask(predictor, aggregation="max")


def load_predictor_with_lstm(predictor):
    """The same encoder and task under an LSTM."""
    tagger = FeatureTagger(
        STRATEGIES["last"],
        predictor.model.config,
        num_outputs=len(predictor.task.labels),
        lstm_size=8,
    )
    heads = torch.nn.ModuleDict({FEATURE_TAGGER: tagger})
    model = type(predictor.model)(predictor.model.encoder, dict(heads.items()))
    return type(predictor)("ner", predictor.task, model, predictor.tokenizer, predictor.device)


def test_a_task_of_another_kind_is_led_elsewhere(models):
    predictor = models["sentiment"]
    task = MultipleChoice()
    other = type(predictor)("swag", task, predictor.model, predictor.tokenizer, predictor.device)
    with pytest.raises(UserError, match=r"MultipleChoice: mine .workflows/evaluate\.py"):
        ask(other)

"""Which example a model gets: its surest, short, and none where there can be none."""

from dataclasses import replace

import pytest
import torch
from pretraining_runs import write_corpus
from running import write_models

from bert_core.config import ModelConfig
from bert_core.example import check_example
from bert_core.example_choice import example_of_encoder, example_of_task
from bert_core.example_question import outputs_of, question_of
from bert_core.model.bert import Bert
from bert_core.predictor import load_predictor
from bert_core.tasks.classification import Text
from bert_core.tasks.conll import TaggedSentence
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.squad import Question
from bert_core.tasks.task import add_task_head
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer

TEXTS = ["the cat sat on a mat", "dogs run far", "a mat slowly", "the the the cat", "away", "sat"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def chosen(folders):
    """The example that a model of a task gets, of some of its examples."""

    def choose(name, examples):
        predictor = load_predictor(folders[name])
        return example_of_task(predictor.model, predictor.tokenizer, predictor.task, examples)

    return choose


def test_of_short_texts_the_surest_is_taken(folders, chosen):
    texts = [Text(each, None, None) for each in TEXTS]
    found, _ = load_predictor(folders["sentiment"]).predict(texts)
    best = max(range(len(texts)), key=lambda number: max(found[number]["scores"].values()))
    assert chosen("sentiment", texts).inputs == TEXTS[best]
    assert chosen("sentiment", texts) == chosen("sentiment", texts)
    several, _ = load_predictor(folders["topics"]).predict(texts)
    margins = [min(abs(score - 0.5) for score in each["scores"].values()) for each in several]
    assert chosen("topics", texts).inputs == TEXTS[margins.index(max(margins))]


def test_something_is_found_in_it_where_there_is(folders, chosen):
    sentences = [TaggedSentence(each.split()) for each in TEXTS]
    found = chosen("entities", sentences)
    predictions, _ = load_predictor(folders["entities"]).predict(sentences)
    assert any(each["entities"] for each in predictions)
    assert found.kind == "ner" and found.answer["entities"]
    questions = [Question("", "the cat", each, None) for each in TEXTS]
    found = chosen("answers", questions)
    assert found.inputs["context"] in TEXTS and found.answer["answers"]


def test_long_texts_are_cut_to_whole_words_until_they_fit(chosen):
    words = "the cat sat on a mat " * 500
    found = chosen("sentiment", [Text(words, None, None)])
    assert words.startswith(f"{found.inputs} ") and 100 < len(found.inputs) < 300
    found = chosen("answers", [Question("", words, words, None)])
    assert len(found.inputs["question"]) < 300 and found.answer["answers"]
    assert chosen("entities", [TaggedSentence(["cat"] * 999)]).inputs.split()[-1] == "cat"


def test_choices_are_asked_together(folders):
    predictor = load_predictor(folders["sentiment"])
    add_task_head(predictor.model, MultipleChoice())
    choices = Choices("the cat", ("sat on a mat", "run far", "dogs"), None)
    found = example_of_task(predictor.model, predictor.tokenizer, MultipleChoice(), [choices])
    assert found.inputs == {"context": "the cat", "choices": ["sat on a mat", "run far", "dogs"]}
    scores = found.answer["scores"]
    assert len(scores) == 3 and found.answer["choice"] == scores.index(max(scores))


def test_there_is_none_without_texts_or_numbers(folders, chosen):
    assert chosen("sentiment", []) is None
    assert chosen("sentiment", [Text("  ", None, None)]) is None
    assert chosen("paraphrase", [Text("the", " ", None)]) is None
    assert chosen("entities", [TaggedSentence([" "])]) is None
    predictor = load_predictor(folders["sentiment"])
    with torch.no_grad():
        predictor.model.encoder.layers[0].output.bias[0] = float("nan")
    texts = [Text(TEXTS[0], None, None)]
    assert example_of_task(predictor.model, predictor.tokenizer, predictor.task, texts) is None


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    return open_shards(write_corpus(tmp_path_factory.mktemp("corpus")), "heldout")


def encoder_for(shards, *, is_decoder=False, longest=32):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=shards.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=longest,
        is_decoder=is_decoder,
    )
    return Bert.for_pretraining(config)


def test_an_encoder_is_asked_for_a_word_of_a_heldout_sentence(heldout):
    tokenizer, model = load_tokenizer(heldout.folder), encoder_for(heldout)
    found = example_of_encoder(model, tokenizer, heldout)
    assert found.kind == "fill-mask" and found.inputs.count("[MASK]") == 1
    (mask,) = found.answer["masks"]
    assert found.inputs[mask["start"] : mask["end"]] == "[MASK]" and len(mask["candidates"]) == 5
    before, after = found.inputs.split("[MASK]")
    text = heldout.shards[0]
    sentences = [
        tokenizer.decode(text.tokens[a:b].tolist())
        for a, b in zip(text.sentences[:-1], text.sentences[1:], strict=True)
    ]
    assert any(each.startswith(before) and each.endswith(after) for each in sentences)


def test_what_has_no_such_head_is_asked_for_features(heldout):
    tokenizer, model = load_tokenizer(heldout.folder), encoder_for(heldout, is_decoder=True)
    found = example_of_encoder(model, tokenizer, heldout)
    assert found.kind == "features" and "[MASK]" not in found.inputs
    question = question_of(found, None, tokenizer, 32)
    rows = question.rows(tokenizer)
    assert check_example(found, question.answer(outputs_of(model, question, rows), rows)) is None
    nothing = replace(heldout, shards=[])
    assert example_of_encoder(model, tokenizer, nothing) is None
    assert example_of_encoder(encoder_for(heldout, longest=6), tokenizer, heldout) is None

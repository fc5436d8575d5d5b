"""A model's example in its folder, and what counts as another answer."""

import json
from dataclasses import replace

import pytest
import torch
from pretraining_runs import write_corpus
from running import write_models
from transformers import BertForPreTraining

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.example import ModelExample, check_example, read_example
from bert_core.example_answers import (
    VECTOR_NUMBERS,
    answer_of,
    answered_by,
    example_of_encoder,
    example_of_task,
    outputs_of,
    question_of,
)
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model.bert import Bert
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.answers import classified
from bert_core.tasks.classification import Text
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.task import add_task_head
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.tokenizer_training import train_wordpiece

SCORES = [{"label": "up", "score": 0.7}, {"label": "down", "score": 0.3}]
ENTITY = {"type": "PER", "text": "Ada", "start": 4, "end": 7, "score": 0.9}


def example(answer, kind="classify", precision="float32", tolerance=1e-3):
    return ModelExample(
        kind=kind, inputs="a text", answer=answer, precision=precision, tolerance=tolerance
    )


@pytest.fixture
def folder(tmp_path, small_model):
    tokenizer = train_wordpiece(["the cat sat"] * 3, 60, lowercase=True)
    mine = example({"label": "up", "scores": SCORES})
    save_model_folder(tmp_path / "model", small_model, tokenizer, "# A card\n", example=mine)
    return tmp_path / "model"


def test_it_comes_back_and_transformers_does_not_mind(folder):
    assert read_example(folder) == example({"label": "up", "scores": SCORES})
    _, report = BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report


def test_a_folder_without_one_says_nothing(tmp_path):
    assert read_example(tmp_path) is None


def test_damage_is_noticed_with_checksums_and_without(folder):
    path = folder / "example.json"
    path.write_text(path.read_text().replace("up", "down"))
    with pytest.raises(ModelFolderError, match=r"damaged.*example\.json"):
        load_model_folder(folder)
    for content in ("{", json.dumps({"kind": "sing", "inputs": ""}), "[]"):
        path.write_text(content)
        with pytest.raises(UserError, match=r"damaged model example.*example\.json"):
            read_example(folder)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        # What comes besides, as over HTTP; equal scores that changed places; rounding.
        ({"label": "up"}, {"label": "up", "n_tokens": 7}),
        ({"scores": SCORES}, {"scores": [*reversed(SCORES)]}),
        ({"value": 3.0}, {"value": 3.002}),
        ({"vector": [0.5, -0.5]}, {"vector": [0.5005, -0.5, 9.0]}),
        ({"entities": []}, {"entities": []}),
        # The last of the best tokens was as likely as another one.
        (
            {"candidates": [{"token": "a", "score": 0.5}, {"token": "b", "score": 0.1}]},
            {"candidates": [{"token": "a", "score": 0.5}, {"token": "c", "score": 0.1004}]},
        ),
    ],
)
def test_the_same_answer(answer, found):
    assert check_example(example(answer), found) is None


@pytest.mark.parametrize(
    ("answer", "found", "difference"),
    [
        ({"label": "up"}, {"label": "down"}, "label is 'down', was 'up'"),
        ({"label": "up"}, {"entities": []}, "label is missing"),
        (
            {"scores": SCORES},
            {"scores": [{"label": "up", "score": 0.702}, SCORES[1]]},
            "scores.up.score is 0.702, was 0.7, and may be off by 0.001",
        ),
        ({"scores": SCORES}, {"scores": SCORES[:1]}, "scores has 1, had 2"),
        ({"value": 3.0}, {"value": float("nan")}, "value is nan, was 3"),
        ({"vector": [0.5, 0.5]}, {"vector": [0.5, 0.6]}, "vector[1] is 0.6, was 0.5"),
        ({"vector": [0.5, 0.5]}, {"vector": [0.5]}, "vector has 1, had 2: [0.5]"),
        ({"entities": []}, {"entities": [ENTITY]}, "entities has 1, had 0"),
        (
            {"entities": [ENTITY]},
            {"entities": [ENTITY | {"end": 8}]},
            "entities[0].end is 8, was 7",
        ),
        (
            {"candidates": [{"token": "a", "score": 0.5}]},
            {"candidates": [{"token": "b", "score": 0.4}]},
            "candidates.a is None",
        ),
    ],
)
def test_another_answer_is_told_in_a_line(answer, found, difference):
    told = check_example(example(answer), found)
    assert told.startswith(difference) and "\n" not in told


def test_fewer_bits_on_either_side_may_be_further_off():
    answer, found = {"value": 0.5}, {"value": 0.54}
    assert check_example(example(answer), found) is not None
    assert check_example(example(answer), found, "bfloat16") is None
    assert check_example(example(answer, precision="int8", tolerance=0.1), found) is None


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
    """That is furthest from its thresholds."""
    texts = [Text(text, None, None) for text in TEXTS]
    for name, decisive in (("sentiment", ("good",)), ("topics", ("cats", "dogs", "mats"))):
        predictor = load_predictor(folders[name])
        found, _ = predictor.predict_examples(texts)
        limits = {label: predictor.task.threshold_of(label) for label in decisive}
        margins = [
            min(abs(each["scores"][label] - limit) for label, limit in limits.items())
            for each in found
        ]
        assert chosen(name, texts).inputs == TEXTS[margins.index(max(margins))]
        assert chosen(name, texts) == chosen(name, texts)


def test_something_is_found_in_it_where_there_is(folders, chosen):
    sentences = [TaggedSentence(text.split()) for text in TEXTS]
    found = chosen("entities", sentences)
    predictions, _ = load_predictor(folders["entities"]).predict_examples(sentences)
    assert any(prediction["entities"] for prediction in predictions)
    assert found.kind == "ner" and found.answer["entities"]
    questions = [Question("", "the cat", text, None) for text in TEXTS]
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
    assert any(sentence.startswith(before) and sentence.endswith(after) for sentence in sentences)


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


PAIR = {"text": "the cat sat", "text_pair": "dogs run"}
QUESTION = {"question": "the cat", "context": "a mat far away slowly"}


def asked(kind, inputs, answer=None):
    return ModelExample(
        kind=kind, inputs=inputs, answer=answer or {}, precision="float32", tolerance=1e-3
    )


def test_a_pair_is_classified_as_by_its_task(folders):
    found = answer_of(folders["paraphrase"], asked("classify", PAIR))
    text = Text(PAIR["text"], PAIR["text_pair"], None)
    expected, _ = load_predictor(folders["paraphrase"]).predict_examples([text])
    assert check_example(asked("classify", PAIR, found), classified(expected[0])) is None


def test_a_vector_begins_as_the_features_do(folders):
    found = answer_of(folders["encoder"], asked("features", "the cat sat on a mat"))
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
    mine = answered_by(folders[model], asked(kind, inputs))
    assert field in mine.answer
    assert check_example(mine, answer_of(folders[model], mine)) is None
    other = {"entities": "sentiment", "sentiment": "entities"}.get(model, "entities")
    if model != "entities":
        with pytest.raises(UserError, match="another kind of model"):
            answer_of(folders[other], mine)


def test_other_weights_answer_otherwise_and_dropout_is_off(folders):
    mine = answered_by(folders["encoder"], asked("fill-mask", "the [MASK] sat"))
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

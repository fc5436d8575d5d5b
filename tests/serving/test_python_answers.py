"""`bert_core.load` answers as a server of the same folders does, and refuses what it cannot do."""

from functools import partial

import numpy as np
import pytest
from running import answers, assert_alike
from small_tasks import WORDS

import bert_core
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.task import add_task_head
from bert_core.text import texts as texts_module

TEXTS = ["the cat sat on a mat", "a dog", "", "Dogs run , and a cat sat on mats ."]
LONG = " ".join(WORDS) * 40
QUESTIONS = [{"question": "who sat", "context": text} for text in (*TEXTS[:2], "the mat " * 60)]


def ask_with(name, option, value, predictor):
    return predictor.predict(QUESTIONS if name == "answers" else TEXTS, **{option: value})


@pytest.fixture(scope="module")
def predictors(small_models):
    return {name: bert_core.load(folder) for name, folder in small_models.items()}


@pytest.mark.parametrize(
    ("path", "name", "inputs", "options"),
    [
        ("/v1/classify", "sentiment", TEXTS, {}),
        ("/v1/classify", "sentiment", [LONG, *TEXTS], {"overflow": "window", "top_k": 1}),
        ("/v1/classify", "sentiment", [LONG, *TEXTS], {"overflow": "left"}),
        ("/v1/classify", "paraphrase", [{"text": t, "text_pair": "a cat"} for t in TEXTS], {}),
        ("/v1/classify", "topics", TEXTS, {"top_k": 2}),
        ("/v1/classify", "grade", TEXTS, {}),
        ("/v1/ner", "entities", TEXTS, {}),
        ("/v1/ner", "entities", [LONG, *TEXTS], {"overflow": "window", "aggregation": "max"}),
        ("/v1/qa", "answers", QUESTIONS, {"overflow": "window", "top_k": 3}),
        ("/v1/qa", "answers", QUESTIONS[:2], {"null_threshold": 0.5, "max_answer_length": 2}),
    ],
)
def test_predictions_are_those_of_the_server(server, predictors, path, name, inputs, options):
    found = predictors[name].predict(inputs, **options)
    wanted = answers(server, path, name, inputs, **options)
    assert_alike([each.model_dump(exclude_none=True) for each in found], wanted)


@pytest.mark.parametrize("options", [{}, {"top_k": 2, "targets": ["cat", "dogs", "mat"]}])
def test_masks_are_filled_as_by_the_server(server, predictors, options):
    texts = ["the [MASK] sat on a [MASK]", "[MASK]", "a dog [MASK] . " * 5]
    found = predictors["encoder"].fill_mask(texts, **options)
    wanted = answers(server, "/v1/fill-mask", "encoder", texts, **options)
    assert_alike([each.model_dump() for each in found], wanted)
    assert [len(each.masks) for each in found] == [2, 1, 5]


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_those_of_the_server(server, predictors, normalize):
    _, wanted = server.ask("/embed?model=encoder", {"inputs": TEXTS, "normalize": normalize})
    found = predictors["encoder"].embed(TEXTS, normalize=normalize)
    assert found.shape == (len(TEXTS), 32) and found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    lengths = np.linalg.norm(found, axis=1)
    assert np.allclose(lengths, 1) == normalize


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors_with_a_pooling_are_those_of_extract(small_models, predictors, pooling):
    texts = [*TEXTS, LONG]
    extractor = load_extractor(small_models["sentiment"], FeatureChoice(pooling=pooling))
    found = predictors["sentiment"].embed(texts, pooling=pooling, overflow="window")
    np.testing.assert_array_equal(found, extractor.of_texts(texts))


def test_a_text_has_the_same_answer_in_any_list(predictors, monkeypatch):
    texts = [*TEXTS, "a [MASK] sat"] * 3
    masked = [f"{text} [MASK]" for text in texts]
    asked = [
        lambda: predictors["sentiment"].embed(texts),
        lambda: [each.scores[0].score for each in predictors["sentiment"].predict(texts)],
        lambda: [e.masks[-1].candidates[0].score for e in predictors["encoder"].fill_mask(masked)],
    ]
    together = [ask() for ask in asked]
    monkeypatch.setattr(texts_module, "TEXTS_AT_ONCE", 2)
    for ask, wanted in zip(asked, together, strict=True):
        np.testing.assert_allclose(ask(), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "given", "others"),
    [
        ("answers", QUESTIONS[0], {"id": 7, "answers": {"text": ["cat"], "answer_start": [4]}}),
        ("paraphrase", {"text": "a", "text_pair": "b"}, {"label": 1, "source": None}),
    ],
)
def test_other_fields_of_a_record_are_not_read(predictors, name, given, others):
    assert predictors[name].predict([given | others]) == predictors[name].predict([given])


def test_nothing_asked_is_nothing_answered(predictors):
    assert predictors["sentiment"].predict([]) == predictors["encoder"].fill_mask([]) == []
    assert predictors["encoder"].embed([]).shape == (0, 32)


def test_multiple_choice_is_answered(small_models):
    _, model, tokenizer = bert_core.load_model_folder(small_models["encoder"])
    task = MultipleChoice(max_length=32)
    add_task_head(model, task)
    predictor = bert_core.Predictor(model.eval(), tokenizer, task, "swag")
    found = predictor.predict([{"context": text, "choices": ["a cat", "sat"]} for text in TEXTS])
    examples = [Choices(text, ("a cat", "sat"), None) for text in TEXTS]
    wanted, _ = predictor.predict_examples(examples)
    assert [(each.choice, each.scores) for each in found] == [(*each.values(),) for each in wanted]
    with pytest.raises(bert_core.UserError, match=r"no input of swag: inputs\[0\] .*choices"):
        predictor.predict(["a"])
    long = {"context": "cat " + "a " * 40 + "sat", "choices": ["cat", "sat"]}
    refused = r"choice has 46 tokens, at most 32 are read.* overflow='right' or"
    with pytest.raises(bert_core.UserError, match=refused):
        predictor.predict([long])
    ends = {
        "left": {"context": "a " * 27 + "sat", "choices": ["cat", "sat"]},
        "right": {"context": "cat " + "a " * 27, "choices": ["cat", "sat"]},
    }
    for side, same in ends.items():  # what is left of the context where that side is cut
        (found,) = predictor.predict([long], overflow=side)
        (wanted,) = predictor.predict([same])
        assert found.scores == pytest.approx(wanted.scores, abs=1e-6)
    with pytest.raises(bert_core.UserError, match="not read in windows: overflow"):
        predictor.predict([long], overflow="window")
    more = {"context": "a", "choices": ["cat", "sat", "mat"]}
    with pytest.raises(bert_core.UserError, match=r"3 choices where .* has 2: inputs\[1\]"):
        predictor.predict([ends["left"], more])


@pytest.mark.parametrize(
    ("name", "ask", "match"),
    [
        ("encoder", lambda p: p.predict(["a"]), "no known task in the model: .*finetune.py"),
        ("sentiment", lambda p: p.fill_mask(["[MASK]"]), "no masked-token head: .*pre-trained"),
        ("encoder", lambda p: p.fill_mask(["[MASK]", "a"]), r"no \[MASK\]: texts\[1\]"),
        ("encoder", lambda p: p.fill_mask(["[MASK]"], top_k=0), "top_k is 0"),
        ("encoder", lambda p: p.fill_mask(["[MASK]"], targets=["xyzzy"]), "xyzzy"),
        ("encoder", lambda p: p.fill_mask(["[MASK]"], targets=[]), "choose among: targets"),
        ("encoder", lambda p: p.fill_mask(["[MASK]"], targets="cat"), "no list .*: targets"),
        ("encoder", lambda p: p.fill_mask(["[MASK]"], targets=["a", "\ud800"]), r"targets\[1\]"),
        ("encoder", lambda p: p.embed("a"), "str is no list of inputs: texts"),
        ("encoder", lambda p: p.embed(["a", 3]), r"int is no text: texts\[1\]"),
        ("encoder", lambda p: p.embed(["a", "b\ud800"]), r"half a character.*: texts\[1\]"),
        ("encoder", lambda p: p.embed(["a", LONG]), r"tokens are more .*: texts\[1\] .*overflow="),
        ("encoder", lambda p: p.embed(["a"], pooling="first"), "not pooled by first"),
        ("encoder", lambda p: p.embed(["a"], overflow="cut"), "overflow is cut"),
        ("encoder", lambda p: p.embed(["a"], prompt_name="query"), "no such prompt: query"),
        ("sentiment", lambda p: p.predict(["a", LONG]), r"tokens are more .*: inputs\[1\]"),
        ("sentiment", lambda p: p.predict([{"text": "a", "text_pair": "b"}]), "pass a text"),
        ("paraphrase", lambda p: p.predict(["a"]), r"inputs\[0\] \(pass a pair"),
        ("answers", lambda p: p.predict([{"question": "a"}]), r"inputs\[0\] .*context"),
        (
            "answers",
            lambda p: p.predict([{"question": "a " * 23, "context": "a cat"}]),
            r"the question has 23 tokens, at most 22 are read: inputs\[0\]",
        ),
        ("grade", lambda p: p.predict(["a"], top_k=2), "top_k has no effect on classification"),
        ("sentiment", lambda p: p.predict(["a"], aggregation="max"), "aggregation has no effect"),
        ("entities", lambda p: p.predict(["a"], aggregation="most"), "aggregation is most"),
        ("encoder", lambda p: p.embed(["a"], prompt_name=5), "no such prompt: 5"),
        ("encoder", lambda p: p.embed(["a"], pooling=5), "not pooled by 5"),
        *(
            (name, partial(ask_with, name, option, value), f"{option} is {value}: {option}")
            for name, option, value in (
                ("answers", "max_answer_length", 0),
                ("answers", "max_answer_length", -3),
                ("answers", "top_k", 1.5),
                ("answers", "top_k", "x"),
                ("answers", "null_threshold", "x"),
                ("answers", "null_threshold", float("nan")),
                ("answers", "null_threshold", float("-inf")),
                ("answers", "align_to_words", "yes"),
                ("sentiment", "top_k", 0),
                ("sentiment", "overflow", None),
                ("entities", "aggregation", ""),
            )
        ),
    ],
)
def test_what_a_model_cannot_do_is_said_in_one_line(predictors, name, ask, match):
    with pytest.raises(bert_core.UserError, match=match) as raised:
        ask(predictors[name])
    assert "\n" not in str(raised.value)


def test_numbers_may_be_those_of_numpy_and_of_any_size(predictors):
    wanted = predictors["answers"].predict(QUESTIONS, overflow="window", max_answer_length=400)
    options = {"max_answer_length": 10**30, "top_k": np.int64(1)}
    assert predictors["answers"].predict(QUESTIONS, overflow="window", **options) == wanted


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"device": "gpu"}, "no such device here: gpu"),
        ({"dtype": "float16"}, "float16 is not supported: dtype .pass float32 or bfloat16"),
        ({"task_name": "sst2"}, "no known task in the model"),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(small_models, tmp_path, options, match):
    with pytest.raises(bert_core.UserError, match=match):
        bert_core.load(small_models["encoder"], **options)
    with pytest.raises(bert_core.UserError, match="no model folder.*config.json"):
        bert_core.load(tmp_path / "nothing")


def test_a_folder_may_lie_in_the_home_folder(small_models, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    _, model, tokenizer = bert_core.load_model_folder(small_models["encoder"])
    bert_core.save_model_folder("~/encoder", model, tokenizer)
    assert (tmp_path / "encoder" / "config.json").is_file()
    assert bert_core.load("~/encoder").folder == tmp_path / "encoder"


def test_cut_texts_are_reported(predictors):
    with pytest.warns(UserWarning, match="1 of 2 texts are cut to 384 tokens"):
        predictors["encoder"].embed(["a", LONG], overflow="right")
    (found,) = predictors["sentiment"].predict([LONG], overflow="right")
    assert found.truncated and found.n_tokens > 64


def test_products_in_bfloat16_are_near(small_models, predictors):
    found = bert_core.load(small_models["encoder"], dtype="bfloat16").embed(TEXTS)
    wanted = predictors["encoder"].embed(TEXTS)
    assert found.dtype == np.float32 and not np.array_equal(found, wanted)
    assert (found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.99

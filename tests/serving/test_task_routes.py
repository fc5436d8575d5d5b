"""Our own routes for tasks, features and pre-training heads."""

import base64
import random

import numpy as np
import pytest
import torch
from running import SMALL_TASKS, answers, assert_alike
from small_tasks import WORDS
from transformers import BertForPreTraining

from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model.strategies import STRATEGIES
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.text_tagging import word_spans


def some_texts(seed, count, longest=20):
    """Texts of few words, seeded, none of them empty."""
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS, k=choose.randint(1, longest))) for _ in range(count)]


def offline(server, name, examples):
    """What the offline predictor says of a model's examples."""
    return load_predictor(server.folders[name]).predict_examples(examples)


def test_one_label(server):
    texts = some_texts(1, 20)
    wanted, rows = offline(server, "sentiment", [Text(text, None, None) for text in texts])
    found = answers(server, "/v1/classify", "sentiment", texts)
    for each, other in zip(found, wanted, strict=True):
        assert each["label"] == other["label"] == each["scores"][0]["label"]
        assert_alike({s["label"]: s["score"] for s in each["scores"]}, other["scores"])
    assert [each["n_tokens"] for each in found] == rows.lengths.tolist()
    assert len({each["scores"][0]["score"] for each in found}) > 10
    assert not any(each["truncated"] for each in found)


def test_a_pair_of_texts(server):
    pairs = list(zip(some_texts(2, 9), some_texts(3, 9), strict=True))
    wanted, _ = offline(server, "paraphrase", [Text(*pair, None) for pair in pairs])
    inputs = [{"text": first, "text_pair": second} for first, second in pairs]
    found = answers(server, "/v1/classify", "paraphrase", inputs, top_k=1)
    assert [each["label"] for each in found] == [each["label"] for each in wanted]
    assert all(len(each["scores"]) == 1 for each in found)


def test_several_labels(server):
    texts = some_texts(4, 12)
    wanted, _ = offline(server, "topics", [Text(text, None, None) for text in texts])
    found = answers(server, "/v1/classify", "topics", texts)
    assert [each["labels"] for each in found] == [each["labels"] for each in wanted]
    assert {len(each["labels"]) for each in found} > {1}


def test_a_number(server):
    texts = some_texts(5, 6)
    wanted, _ = offline(server, "grade", [Text(text, None, None) for text in texts])
    found = answers(server, "/v1/classify", "grade", texts)
    assert_alike([each["value"] for each in found], [each["value"] for each in wanted])


@pytest.mark.parametrize("overflow", ["left", "right", "window"])
def test_a_long_text_is_read_as_asked_for(server, overflow):
    texts = [" ".join(WORDS * 20), "a cat"]
    predictor = load_predictor(server.folders["topics"])
    task = predictor.task.model_copy(update={"overflow": overflow})
    examples = [Text(text, None, None) for text in texts]
    rows = task.encode(examples, predictor.tokenizer)
    found = answers(server, "/v1/classify", "topics", texts, overflow=overflow)
    assert [each["n_tokens"] for each in found] == rows.num_tokens.tolist()
    assert [each["truncated"] for each in found] == [overflow != "window", False]


@pytest.mark.parametrize(
    ("path", "model", "long"),
    [
        ("/v1/classify", "sentiment", " ".join(WORDS * 20)),
        ("/v1/ner", "entities", " ".join(WORDS * 20)),
        ("/v1/qa", "answers", {"question": "a cat", "context": " ".join(WORDS * 20)}),
        ("/v1/features", "encoder", " ".join(WORDS * 60)),
    ],
)
def test_a_long_text_is_refused_by_default(server, path, model, long):
    short = {"question": "a", "context": "a cat"} if isinstance(long, dict) else "a cat"
    status, problem = server.ask(path, {"model": model, "inputs": [short, long]})
    assert status == 422
    assert problem["title"] == "Text too long" and problem["field"] == "inputs[1]"
    assert "overflow" in problem["remedy"]
    status, problem = server.ask(path, {"model": model, "inputs": long})
    assert problem["field"] == "inputs"
    body = {"model": model, "inputs": [short, long], "overflow": "window"}
    status, content = server.ask(path, body)
    assert status == 200
    assert not any(result["truncated"] for result in content["results"])


@pytest.mark.parametrize("overflow", ["left", "right", "window"])
def test_a_long_question_has_a_limit_of_its_own(server, overflow):
    """Half of the row, whose 3 other tokens are special; no overflow reads more of it."""
    inputs = [{"question": "a " * count, "context": "a cat"} for count in (22, 23)]
    body = {"model": "answers", "inputs": inputs}
    status, problem = server.ask("/v1/qa", body)
    assert (status, problem["title"], problem["field"]) == (422, "Text too long", "inputs[1]")
    assert problem["detail"] == "the question has 23 tokens, at most 22 are read"
    found = answers(server, "/v1/qa", "answers", inputs, overflow=overflow)
    assert [each["truncated"] for each in found] == [False, True]
    assert [each["n_tokens"] for each in found] == [22 + 2 + 3, 23 + 2 + 3]
    assert_alike(found[1]["answers"], found[0]["answers"])  # the first 22 are the same


def test_entities_are_those_of_the_offline_words(server):
    hard = ["(the cat)'s mat, a dogs.", "<b>the cat</b>—dogs,mat \ufeffcat\u200b a\ufe0f", ""]
    texts = [*some_texts(6, 10), *hard]
    spans = [word_spans(each) for each in texts]
    sentences = [
        TaggedSentence([text[a:b] for a, b in some])
        for text, some in zip(texts, spans, strict=True)
    ]
    wanted, _ = offline(server, "entities", sentences)
    found = answers(server, "/v1/ner", "entities", texts)
    assert sum(len(each["entities"]) for each in found) > 10
    for text, words, each, other in zip(texts, spans, found, wanted, strict=True):
        for entity, offline_one in zip(each["entities"], other["entities"], strict=True):
            assert entity["text"] == text[entity["start"] : entity["end"]]
            assert entity["start"] == words[offline_one["start"]][0]
            assert entity["end"] == words[offline_one["end"] - 1][1]
            assert entity["type"] == offline_one["type"]
            assert entity["score"] == pytest.approx(offline_one["score"], abs=1e-5)


@pytest.mark.parametrize("aggregation", ["none", "simple", "average", "max"])
def test_entities_are_joined_as_asked_for(server, aggregation):
    texts = some_texts(7, 5)
    found = answers(server, "/v1/ner", "entities", texts, aggregation=aggregation)
    types = {entity["type"] for each in found for entity in each["entities"]}
    assert types and types <= (
        {"B-PER", "I-PER", "B-LOC", "I-LOC"} if aggregation == "none" else {"PER", "LOC"}
    )


def test_answers_are_those_of_the_offline_predictor(server):
    questions = some_texts(8, 6, 5)
    contexts = some_texts(9, 6, 60)
    examples = [
        Question("", question, context, None)
        for question, context in zip(questions, contexts, strict=True)
    ]
    wanted, rows = offline(server, "answers", examples)
    assert len(rows.lengths) > len(examples)  # some have windows
    inputs = [
        {"question": question, "context": context}
        for question, context in zip(questions, contexts, strict=True)
    ]
    found = answers(server, "/v1/qa", "answers", inputs, overflow="window", top_k=3)
    for each, other, context in zip(found, wanted, contexts, strict=True):
        assert_alike(each["answers"], other["n_best"][:3])
        assert each["null_score"] == pytest.approx(other["null_score"], abs=1e-5)
        assert all(a["text"] == context[a["start"] : a["end"]] for a in each["answers"])


def test_there_may_be_no_answer_or_one_as_long_as_asked_for(server):
    inputs = {"question": "a cat", "context": "the mat"}
    body = {"model": "answers", "inputs": inputs, "null_threshold": -1e9}
    _, content = server.ask("/v1/qa", body)
    assert content["results"][0]["answers"] == []
    _, content = server.ask("/v1/qa", body | {"null_threshold": 1e9})
    assert content["results"][0]["answers"][0]["text"]
    inputs = {"question": "a", "context": " ".join(WORDS)}
    body = {"model": "answers", "inputs": inputs, "max_answer_length": 1, "top_k": 50}
    _, content = server.ask("/v1/qa", body | {"align_to_words": True})
    texts = [answer["text"] for answer in content["results"][0]["answers"]]
    assert texts and set(texts) <= set(WORDS)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "embeddings", "pooling": "max"},
        {"unit": "word", "pooling": "first", "normalize": True},
        {"unit": "token", "strategy": "layer_1"},
    ],
)
def test_features_are_those_of_the_extractor(server, options):
    texts = [*some_texts(10, 5), "cats", ""]
    strategy = {**STRATEGIES}.get(options.get("strategy", "last"))
    found = answers(server, "/v1/features", "encoder", texts, **options)
    if strategy is None:
        strategy = STRATEGIES["last"]  # layer_1 is the last of one
    choice = FeatureChoice(
        strategy=strategy,
        unit=options.get("unit", "text"),
        pooling=options.get("pooling"),
        normalize=options.get("normalize", False),
    )
    wanted = load_extractor(server.folders["encoder"], choice).of_texts(texts)
    if "unit" in options:
        units = [unit for each in found for unit in each["units"]]
        vectors = [each["vector"] for each in units]
        for each, text in zip(found, texts, strict=True):
            for unit in each["units"]:
                assert unit["text"] == text[unit["start"] : unit["end"]]
    else:
        vectors = [each["vector"] for each in found]
    np.testing.assert_allclose(np.array(vectors), wanted, atol=1e-5)


def test_features_may_be_base64(server):
    body = {"model": "encoder", "inputs": "a cat"}
    _, plain = server.ask("/v1/features", body)
    _, coded = server.ask("/v1/features", body | {"encoding": "base64"})
    vector = np.frombuffer(base64.b64decode(coded["results"][0]["vector"]), dtype="<f4")
    assert len(vector) == plain["dimensions"] == 32
    np.testing.assert_allclose(vector, plain["results"][0]["vector"], atol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/v1/classify", {"inputs": "a"}, 422, "model"),
        ("/v1/classify", {"model": "none", "inputs": "a"}, 404, "model"),
        ("/v1/classify", {"model": "entities", "inputs": "a"}, 422, "model"),
        ("/v1/classify", {"model": "paraphrase", "inputs": ["a"]}, 422, "inputs[0]"),
        ("/v1/classify", {"model": "grade", "inputs": {"text": "a"}}, 422, "inputs.text_pair"),
        ("/v1/classify", {"model": "grade", "inputs": 3}, 422, "inputs"),
        ("/v1/ner", {"inputs": ["a", 3]}, 422, "inputs[1]"),
        ("/v1/ner", {"inputs": "a", "aggregate": "first"}, 422, "aggregate"),
        ("/v1/qa", {"inputs": {"question": "a"}}, 422, "inputs.context"),
        ("/v1/qa", {"inputs": {"question": "a", "context": "b"}, "top_k": 0}, 422, "top_k"),
        ("/v1/features", {"inputs": "a", "strategy": "lost"}, 422, None),
        ("/v1/features", {"inputs": "a", "unit": "word", "pooling": "cls"}, 422, None),
        ("/v1/features", {"inputs": "a", "strategy": "sum_last_four"}, 422, None),
        ("/v1/features", {"inputs": "a", "strategy": "weighted_sum_all"}, 422, None),
        ("/v1/ner", {"inputs": "\ud800"}, 422, "inputs"),
        ("/v1/features", {"inputs": "a", "strategy": "\ud800"}, 422, "strategy"),
        ("/v1/features", {"inputs": "a", "strategy": "s" * 201}, 422, "strategy"),
        ("/v1/similarity", {"source": "a", "inputs": [], "strategy": "\ud800"}, 422, "strategy"),
        ("/v1/features", {"inputs": "a", "model": "\ud800"}, 404, "model"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(server, path, body, status, field):
    found, problem = server.ask(path, body)
    assert found == status == problem["status"], problem
    assert problem.get("field") == field
    assert problem["detail"] and problem["remedy"]


def test_the_only_model_that_can_need_not_be_named(server):
    assert server.ask("/v1/ner", {"inputs": "a cat"})[1]["model"] == "entities"
    assert server.ask("/v1/features", {"inputs": "a cat"})[0] == 200


@pytest.mark.parametrize(
    ("path", "model"),
    [("classify", "topics"), ("ner", "entities"), ("qa", "answers"), ("features", "encoder")],
)
def test_nothing_asked_is_nothing_answered(server, path, model):
    status, content = server.ask(f"/v1/{path}", {"model": model, "inputs": []})
    assert status == 200 and content["results"] == []


@pytest.fixture
def lstm_server(small_models, start_server, tmp_path):
    """A server of a tagger that reads frozen features with an LSTM."""
    _, model, tokenizer = load_model_folder(small_models["encoder"])
    task = SMALL_TASKS["entities"][1]
    for name in list(model.heads):
        del model.heads[name]
    torch.manual_seed(5)
    strategy = STRATEGIES["weighted_sum_all"]
    tagger = FeatureTagger(strategy, model.config, num_outputs=len(task.labels), lstm_size=8)
    for parameter in tagger.lstm.parameters():
        parameter.data.normal_(std=1.0)
    model.heads[FEATURE_TAGGER] = tagger
    config = task_config("ner", task)
    save_model_folder(tmp_path / "lstm", model, tokenizer, card="", extra_config=config)
    return start_server({"lstm": tmp_path / "lstm"})


def test_an_lstm_is_asked_for_words_alone(lstm_server):
    texts = [*some_texts(12, 6), ""]
    sentences = [TaggedSentence([text[a:b] for a, b in word_spans(text)]) for text in texts]
    wanted, _ = offline(lstm_server, "lstm", sentences)
    found = answers(lstm_server, "/v1/ner", "lstm", texts)
    assert sum(len(each["entities"]) for each in found) > 5
    for each, other in zip(found, wanted, strict=True):
        assert [(e["type"], e["start_word"], e["end_word"]) for e in each["entities"]] == [
            (e["type"], e["start"], e["end"]) for e in other["entities"]
        ]
    status, problem = lstm_server.ask("/v1/ner", {"inputs": "a", "aggregation": "max"})
    assert status == 422 and problem["field"] == "aggregation"
    assert lstm_server.ask("/hf/token-classification", {"inputs": texts[0]})[0] == 200


TEXTS = ["the [MASK] sat on a mat", "[MASK] dogs [MASK]", "a [MASK]"]
PAIRS = [("the cat sat", "on a mat"), ("dogs run far", "away slowly")]


@pytest.fixture(scope="module")
def published(server):
    """The encoder as `transformers` loads it."""
    return BertForPreTraining.from_pretrained(server.folders["encoder"]).eval()


def ids_of(server, *texts):
    return server.engine.models["encoder"].tokenizer.encode(*texts)


def test_masks_are_filled(server, published):
    found = answers(server, "/v1/fill-mask", "encoder", TEXTS, top_k=3)
    for text, each in zip(TEXTS, found, strict=True):
        encoding = ids_of(server, text)
        assert each["n_tokens"] == len(encoding)
        with torch.inference_mode():
            logits = published(input_ids=torch.tensor([encoding.ids])).prediction_logits[0]
        places = [i for i, token in enumerate(encoding.tokens) if token == "[MASK]"]
        for mask, place in zip(each["masks"], places, strict=True):
            scores = [candidate["score"] for candidate in mask["candidates"]]
            shares = logits[place].softmax(-1)
            wanted = [float(shares[candidate["id"]]) for candidate in mask["candidates"]]
            assert scores == pytest.approx(wanted, abs=1e-5) and len(scores) == 3
            assert scores == sorted(scores, reverse=True)


def test_only_targets_fill_masks(server):
    body = {"model": "encoder", "inputs": "a [MASK]", "targets": ["cat", "mat"]}
    _, content = server.ask("/v1/fill-mask", body)
    (mask,) = content["results"][0]["masks"]
    assert {candidate["token"] for candidate in mask["candidates"]} == {"cat", "mat"}


def test_next_sentences_are_judged(server, published):
    inputs = [{"text": first, "text_pair": second} for first, second in PAIRS]
    found = answers(server, "/v1/next-sentence", "encoder", inputs)
    for pair, each in zip(PAIRS, found, strict=True):
        encoding = ids_of(server, *pair)
        with torch.inference_mode():
            logits = published(
                input_ids=torch.tensor([encoding.ids]),
                token_type_ids=torch.tensor([encoding.type_ids]),
            ).seq_relationship_logits[0]
        assert each["is_next"] == pytest.approx(float(logits.softmax(-1)[0]), abs=1e-5)


@pytest.mark.parametrize("masking", ["token", "rest_of_word"])
def test_texts_are_judged_by_their_tokens(server, published, masking):
    texts = ["the catmats sat", "dogs", ""]
    found = answers(server, "/v1/pseudo-perplexity", "encoder", texts, masking=masking)
    (token,) = found[1]["tokens"]
    encoding = ids_of(server, "dogs")
    ids = [encoding.ids[0], server.engine.models["encoder"].tokenizer.token_to_id("[MASK]")]
    with torch.inference_mode():
        logits = published(input_ids=torch.tensor([[*ids, encoding.ids[2]]])).prediction_logits[0]
    wanted = float(logits[1].log_softmax(-1)[encoding.ids[1]])
    assert token["log_probability"] == pytest.approx(wanted, abs=1e-4)
    assert found[1]["pseudo_perplexity"] == pytest.approx(np.exp(-wanted), rel=1e-4)
    assert found[2]["tokens"] == [] and "pseudo_perplexity" not in found[2]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("fill-mask", {"inputs": ["[MASK]", "a"]}, "inputs[1]"),
        ("fill-mask", {"inputs": "[MASK]", "targets": ["no such word"]}, None),
        ("fill-mask", {"inputs": "[MASK]", "targets": []}, "targets"),
        ("fill-mask", {"inputs": "[MASK]", "model": "sentiment"}, "model"),
        ("fill-mask", {"inputs": "a [MASK] " * 300}, "inputs"),
        ("next-sentence", {"inputs": "a"}, "inputs"),
        ("next-sentence", {"inputs": {"text": "a " * 300, "text_pair": "a " * 300}}, "inputs"),
    ],
)
def test_what_cannot_be_asked_is_told(server, path, body, field):
    status, problem = server.ask(f"/v1/{path}", body)
    assert status == 422, problem
    assert problem.get("field") == field and problem["remedy"]


def test_each_token_masked_in_turn_is_too_much_of_long_texts(server):
    body = {"inputs": ["a", "a " * 380], "overflow": "left"}
    status, problem = server.ask("/v1/pseudo-perplexity", body)
    assert (status, problem["title"], problem["field"]) == (413, "Too many tokens", "inputs")
    assert "at most" in problem["detail"] and problem["remedy"]


@pytest.mark.parametrize("path", ["/v1/fill-mask", "/hf/fill-mask"])
def test_an_answer_with_many_long_texts_is_refused(server, path):
    text = "[MASK] " * 40 + "x" * 100_000
    status, problem = server.ask(path, {"inputs": text})
    assert status == 413
    assert "Too long an answer" in str(problem)

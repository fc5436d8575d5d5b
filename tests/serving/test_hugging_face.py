"""The client of Hugging Face works unchanged, and reads what our own routes say."""

import json
import time

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from running import assert_alike
from tokenizers import Tokenizer, models, pre_tokenizers

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.special_tokens import BERT_TOKENS, ROBERTA_TOKENS
from bert_core.tasks.catalog import task_config
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head
from serving.routes.hugging_face import QuestionAnsweringParameters, _questions_as_asked

TEXT = "the cat sat on a mat"
LONG = "the cat sat on a mat " * 20


@pytest.fixture
def client(server):
    """Makes a client of a task."""

    def make(task, model=None):
        address = f"http://{server.host}:{server.port}/hf/{task}"
        return InferenceClient(model=f"{address}?model={model}" if model else address)

    return make


def ours(server, path, **body):
    status, content = server.ask(f"/v1/{path}", body)
    assert status == 200, content
    return content["results"]


def test_labels(server, client):
    found = client("text-classification", "sentiment").text_classification(TEXT)
    (wanted,) = ours(server, "classify", model="sentiment", inputs=TEXT)
    assert_alike([{"label": e.label, "score": e.score} for e in found], wanted["scores"])


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
def test_scores_are_as_asked_for(client, function):
    talk = client("text-classification", "topics")
    found = talk.text_classification(TEXT, function_to_apply=function, top_k=2)
    assert len(found) == 2
    every = talk.text_classification(TEXT, function_to_apply=function)
    scores = np.array([each.score for each in every])
    logits = talk.text_classification(TEXT, function_to_apply="none")
    outputs = np.array([logit.score for logit in logits])
    wanted = {
        "none": outputs,
        "sigmoid": 1 / (1 + np.exp(-outputs)),
        "softmax": np.exp(outputs) / np.exp(outputs).sum(),
    }
    np.testing.assert_allclose(scores, wanted[function], atol=1e-6)


def test_pairs_and_numbers(server):
    pair = {"text": TEXT, "text_pair": "a cat"}
    status, found = server.ask("/hf/text-classification?model=paraphrase", {"inputs": [pair]})
    assert status == 200 and {each["label"] for each in found[0]} == {"no", "yes"}
    _, found = server.ask("/hf/text-classification?model=grade", {"inputs": TEXT})
    (wanted,) = ours(server, "classify", model="grade", inputs=TEXT)
    assert found[0][0]["label"] == "LABEL_0"
    assert found[0][0]["score"] == pytest.approx(wanted["value"], abs=1e-5)


@pytest.mark.parametrize("strategy", [None, "none", "simple", "first", "average", "max"])
def test_entities(server, client, strategy):
    found = client("token-classification").token_classification(TEXT, aggregation_strategy=strategy)
    (wanted,) = ours(server, "ner", inputs=TEXT, aggregation=strategy or "simple")
    kind = "entity" if strategy == "none" else "entity_group"
    assert found and [getattr(each, kind) for each in found] == [
        entity["type"] for entity in wanted["entities"]
    ]
    assert [(each.word, each.start, each.end) for each in found] == [
        (entity["text"], entity["start"], entity["end"]) for entity in wanted["entities"]
    ]


def test_entities_of_long_texts_need_a_stride(client):
    talk = client("token-classification")
    with pytest.raises(HfHubHTTPError, match="Text too long"):
        talk.token_classification(LONG)
    assert talk.token_classification(LONG, stride=0)
    kinds = {each.entity_group for each in talk.token_classification(TEXT)}
    left = talk.token_classification(TEXT, ignore_labels=["O", *sorted(kinds)[:1]])
    assert {each.entity_group for each in left} == kinds - {*sorted(kinds)[:1]}


def test_tags_without_an_outside_may_all_be_asked_for(small_models, start_server, tmp_path):
    _, model, tokenizer = load_model_folder(small_models["encoder"])
    task = Tagging(labels=("DET", "NOUN"), max_length=32)
    add_task_head(model, task)
    extra = task_config("tagging", task)
    save_model_folder(tmp_path / "parts", model, tokenizer, card="", extra_config=extra)
    running = start_server({"parts": tmp_path / "parts"})
    body = {"inputs": TEXT, "parameters": {"ignore_labels": []}}
    status, found = running.ask("/hf/token-classification", body)
    assert status == 200 and found


def test_answers(server, client):
    talk = client("question-answering")
    context = "dogs run far away slowly"
    question = {"question": "the cat", "context": context}
    best = talk.question_answering(**question)
    several = talk.question_answering(**question, top_k=3)
    (wanted,) = ours(server, "qa", inputs=question, top_k=3)
    assert [each.answer for each in several] == [answer["text"] for answer in wanted["answers"]]
    assert best.answer == several[0].answer == context[best.start : best.end]
    assert best.score == pytest.approx(wanted["answers"][0]["probability"], abs=1e-5)
    assert talk.question_answering(**question, max_answer_len=1, align_to_words=True).answer
    long = talk.question_answering(question="the cat", context=LONG, doc_stride=4, max_seq_len=24)
    assert long.answer


@pytest.mark.parametrize("special", [BERT_TOKENS, ROBERTA_TOKENS])
@pytest.mark.parametrize(
    ("asked", "overlap"),
    [
        ({"doc_stride": 5, "max_seq_len": 24, "max_question_len": 4}, 5),
        ({"doc_stride": 5, "max_seq_len": 24}, 5),
        ({"max_seq_len": 24}, 8),
    ],
)
def test_windows_of_a_context_overlap_by_the_stride_asked_for(special, asked, overlap):
    vocabulary = {word: index for index, word in enumerate([*special.all, "why", "cat"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=special.unk))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    parameters = QuestionAnsweringParameters(**asked)
    codec = _questions_as_asked(QuestionAnswering(), parameters, 512, 100_000)
    rows = codec.encode([Question("", "why " * 4, "cat " * 1000, None)], tokenizer)
    starts, lengths = rows.notes["window_start"], rows.lengths - rows.first_lengths - 1
    overlaps = starts[:-1] + lengths[:-1] - starts[1:]
    assert len(overlaps) > 2 and set(overlaps.tolist()) == {overlap}


def test_there_may_be_no_answer(client):
    found = client("question-answering").question_answering(
        question="a", context=TEXT, handle_impossible_answer=True, top_k=200
    )
    assert "" in [each.answer for each in found]
    assert sum(each.score for each in found) == pytest.approx(1, abs=1e-4)


def test_vectors(server, client):
    talk = client("feature-extraction")
    found = talk.feature_extraction(TEXT, normalize=True)
    (wanted,) = ours(server, "features", model="encoder", inputs=TEXT, normalize=True)
    np.testing.assert_allclose(found, [wanted["vector"]], atol=1e-5)
    short = talk.feature_extraction(TEXT, normalize=True, dimensions=7)
    assert short.shape == (1, 7) and np.linalg.norm(short) == pytest.approx(1, abs=1e-5)
    with pytest.raises(HfHubHTTPError, match="Text too long"):
        talk.feature_extraction(LONG * 5)
    assert talk.feature_extraction(LONG * 5, truncate=True).shape == (1, 32)
    # The specification has the fields beside the inputs.
    body = {"inputs": [TEXT], "normalize": True, "dimensions": 7}
    _, beside = server.ask("/hf/feature-extraction", body)
    np.testing.assert_allclose(beside, short, atol=1e-5)
    for inside in ({}, {"dimensions": None}, {"truncate": True}, {"dimensions": 7}):
        _, both = server.ask("/hf/feature-extraction", body | {"parameters": inside})
        np.testing.assert_allclose(both, short, atol=1e-5)


def test_words(server, client):
    found = client("fill-mask").fill_mask("the [MASK] sat", top_k=3)
    (wanted,) = ours(server, "fill-mask", model="encoder", inputs="the [MASK] sat", top_k=3)
    candidates = wanted["masks"][0]["candidates"]
    assert [each.token for each in found] == [candidate["id"] for candidate in candidates]
    assert [each.sequence for each in found] == [candidate["sequence"] for candidate in candidates]
    (word,) = client("fill-mask").fill_mask("a [MASK]", targets=["cat"])
    assert word.token_str == "cat"


def test_similarity(server, client):
    others = ["a cat", "dogs run"]
    found = client("sentence-similarity").sentence_similarity(TEXT, other_sentences=others)
    wanted = ours(server, "similarity", model="encoder", source=TEXT, inputs=others)
    assert_alike(found, [each["score"] for each in wanted])


def test_headers_say_how_much_was_read(server):
    body = {"inputs": [LONG * 5], "truncate": True}
    _, _, headers = server.ask_whole("/hf/feature-extraction", body)
    assert headers["X-Truncated"] == "true" and int(headers["X-N-Tokens"]) > 384
    _, _, headers = server.ask_whole("/hf/token-classification", {"inputs": "a cat"})
    assert (headers["X-Truncated"], headers["X-N-Tokens"]) == ("false", "4")


@pytest.mark.parametrize(
    ("task", "body", "status"),
    [
        ("text-classification", {"inputs": "a"}, 422),
        ("text-classification?model=none", {"inputs": "a"}, 404),
        ("token-classification", {"inputs": 3}, 422),
        ("token-classification", {"inputs": "a", "parameters": {"ignore_labels": []}}, 422),
        ("feature-extraction", {"inputs": "a", "prompt_name": "query"}, 422),
        ("feature-extraction", {"inputs": "a", "dimensions": 33}, 422),
        ("fill-mask", {"inputs": "a"}, 422),
        ("nothing", {"inputs": "a"}, 404),
    ],
)
def test_refusals_are_in_the_shape_that_clients_read(server, task, body, status):
    found, content = server.ask(f"/hf/{task}", json.dumps(body))
    assert found == status
    assert list(content) == ["error"] and content["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/hf/text-classification?model=sentiment", {"inputs": "a cat"}),
        ("/hf/token-classification?model=entities", {"inputs": "a cat"}),
        (
            "/hf/question-answering?model=answers",
            {"inputs": {"question": "cat", "context": "the cat sat"}},
        ),
        ("/hf/feature-extraction?model=encoder", {"inputs": "a cat"}),
        ("/hf/fill-mask?model=encoder", {"inputs": "a [MASK]"}),
        (
            "/hf/sentence-similarity?model=encoder",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        ),
    ],
)
def test_null_stands_for_what_is_left_out(server, path, body):
    wanted = server.ask(path, body)
    assert wanted[0] == 200
    assert server.ask(path, body | {"parameters": None, "options": None}) == wanted
    document = server.ask("/openapi.json")[1]["components"]["schemas"]
    schema = server.ask("/openapi.json")[1]["paths"][path.split("?")[0]]["post"]["requestBody"]
    name = schema["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    for each in document[name]["properties"].get("parameters", {}).get("anyOf", []):
        fields = document.get(each.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
        found = server.ask(path, body | {"parameters": dict.fromkeys(fields)})
        assert found == wanted, fields.keys()


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("text-classification?model=sentiment", {"inputs": "a cat"}, ["top_k"]),
        ("token-classification?model=entities", {"inputs": "a cat"}, ["stride"]),
        (
            "question-answering?model=answers",
            {"inputs": {"question": "cat", "context": "the cat sat"}},
            ["top_k", "doc_stride", "max_question_len", "max_answer_len", "max_seq_len"],
        ),
        ("feature-extraction?model=encoder", {"inputs": "a cat"}, ["dimensions"]),
        ("fill-mask?model=encoder", {"inputs": "a [MASK]"}, ["top_k"]),
    ],
)
def test_a_number_of_any_size_is_answered_or_refused(server, path, body, names):
    for name in names:
        for number in (2**31, 10**30):
            asked = body | {"parameters": {name: number}}
            status, _ = server.ask(f"/hf/{path}", asked)
            assert status in (200, 413, 422), name


def test_windows_are_counted_before_they_are_made(server):
    body = {"inputs": {"question": "cat", "context": "the cat sat on " * 2000}}
    body["parameters"] = {"doc_stride": 10_000, "max_seq_len": 384}
    begin = time.perf_counter()
    status, problem = server.ask("/hf/question-answering?model=answers", body)
    assert status == 413 and "overlap" in problem["error"]
    assert time.perf_counter() - begin < 5
    body["inputs"]["context"] = "the cat sat on " * 5  # the remedy
    assert server.ask("/hf/question-answering?model=answers", body)[0] == 200

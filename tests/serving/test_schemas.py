"""The OpenAPI document, and the requests that schemas take and refuse."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_requests import example_requests
from pydantic import TypeAdapter, ValidationError
from running import serving

from serving.middleware.instrumentation import LOG
from serving.routes.embeddings import EmbeddingsRequest, EmbedRequest, PredictRequest
from serving.routes.hugging_face import (
    FeatureExtractionRequest,
    QuestionAnsweringRequest,
    TokenClassificationRequest,
)
from serving.schemas import (
    ClassifyRequest,
    DecodeRequest,
    ExplainRequest,
    FeaturesRequest,
    FillMaskRequest,
    InputText,
    NerRequest,
    NextSentenceRequest,
    PseudoPerplexityRequest,
    QaRequest,
    SimilarityRequest,
    TokenizeRequest,
)

MODELS = ("encoder", "sentiment", "entities", "answers")


@pytest.fixture(scope="module")
def address(small_models):
    """A server with one model of each kind, so that none needs to be named."""
    with serving({name: small_models[name] for name in MODELS}) as running:
        yield running.address


def made_up(address, folder, *options):
    """Runs schemathesis; how many cases it made, and what it found."""
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{address}/openapi.json"),
        *("--checks", "all", "--continue-on-failure"),
        # Whether a request is refused depends on the models: a document cannot say it all.
        *("--exclude-checks", "positive_data_acceptance"),
        *("--seed", "1", "--generation-database", ":memory:", *options),
    ]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    said = re.search(r"([\d,]+) generated", found.stdout)
    assert found.returncode == 0 and said, found.stdout[-8000:] + found.stderr
    return int(said.group(1).replace(",", ""))


@pytest.fixture
def no_mistakes(caplog):
    """Fails where the server logged a mistake of its own, however it was told to the client."""
    yield
    mistakes = [record.message for record in caplog.get_records("call") if record.name == LOG.name]
    assert not [mistake for mistake in mistakes if '"kind"' in mistake]


@pytest.mark.slow
@pytest.mark.usefixtures("no_mistakes")
def test_a_few_hundred_requests_end_as_the_document_says(address, tmp_path):
    assert made_up(address, tmp_path, "--phases", "coverage") > 200


@pytest.mark.slow
@pytest.mark.usefixtures("no_mistakes")
@pytest.mark.timeout(1800)
def test_ten_thousand_requests_end_as_the_document_says(address, tmp_path):
    assert (
        made_up(address, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "500")
        >= 10_000
    )


def test_unknown_addresses_are_problems(server):
    for path, body, status in (("/v1/nothing", None, 404), ("/v1/classify", None, 405)):
        found, problem, headers = server.ask_whole(path, body)
        assert found == status == problem["status"]
        assert headers["Content-Type"] == "application/problem+json"


def test_nobody_is_sent_to_another_address(server):
    """It would be an absolute one, of http where TLS ends before the server."""
    for path in ("/v1/classify/", "/embed/", "/docs/", "/health/", "/openapi.json/", "/nothing/"):
        for body in (None, {"inputs": "a cat"}):
            status, _, headers = server.ask_whole(path, body)
            assert status == 404 and "Location" not in headers


def test_the_document_names_what_may_be_asked_and_refused(server):
    _, document = server.ask("/openapi.json")
    route = document["paths"]["/v1/ner"]["post"]
    assert route["requestBody"]["content"]["application/json"]
    assert {"200", "400", "404", "408", "413", "422", "429", "503"} <= route["responses"].keys()
    assert "application/problem+json" in route["responses"]["422"]["content"]
    schemas = document["components"]["schemas"]
    assert {"Problem", "NerRequest", "NerAnswer"} <= schemas.keys()
    assert "HTTPValidationError" not in schemas


def test_each_route_has_an_example_that_it_takes(server):
    _, document = server.ask("/openapi.json")
    posted = {path for path, operations in document["paths"].items() if "post" in operations}
    requests = example_requests("encoder")
    for address, body in requests.items():
        status, content = server.ask(address, body)
        assert status == 200, (address, content)
    assert {address.partition("?")[0] for address in requests} == posted


TEXT = TypeAdapter(InputText)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ude00\ud83d"])
def test_half_a_character_is_refused_with_its_place(text):
    with pytest.raises(ValidationError, match="half a character") as told:
        TEXT.validate_python(text)
    (error,) = told.value.errors()
    assert error["msg"].endswith(" 1") == text.startswith("a")
    for whole in ("", "\0", "👩‍🚀", "\u202eabc", "é\u0301", "\U0010ffff"):
        assert TEXT.validate_python(whole) == whole


QUESTION = {"question": "a", "context": "b"}
PAIR = {"text": "a", "text_pair": "b"}


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (ClassifyRequest, ["a\ud800"]),
        (ClassifyRequest, {"text": "a", "text_pair": "\udfff"}),
        (NerRequest, "é\ud800"),
        (QaRequest, QUESTION | {"question": "\ud83d"}),
        (FeaturesRequest, ["a", "\ude00\ud83d"]),
        (PseudoPerplexityRequest, "\ud800"),
        (TokenizeRequest, "\udc00"),
    ],
)
def test_half_a_character_is_refused(kind, inputs):
    with pytest.raises(ValidationError, match="half a character"):
        kind(inputs=inputs)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (QaRequest, {"inputs": QUESTION | {"answer": "b"}}),
        (FillMaskRequest, {"inputs": "a", "top_k": 0}),
        (FillMaskRequest, {"inputs": "a", "targets": []}),
        (NextSentenceRequest, {"inputs": ["a"]}),
        (NextSentenceRequest, {"inputs": {"text": "a"}}),
        (PseudoPerplexityRequest, {"inputs": "a", "masking": "word"}),
        (SimilarityRequest, {"source": "a", "inputs": "a"}),
        (SimilarityRequest, {"inputs": ["a"]}),
        (TokenizeRequest, {"inputs": "a", "overflow": "left"}),
        (DecodeRequest, {"ids": [-1]}),
        (DecodeRequest, {"ids": [1, [2]]}),
        (ExplainRequest, {"inputs": ["a"]}),
        (ExplainRequest, {"inputs": "a", "layers": [0]}),
        (ExplainRequest, {"inputs": "a", "heads": 1}),
        (FeatureExtractionRequest, {"inputs": "a", "prompt_name": 5}),
        (FeatureExtractionRequest, {"inputs": "a", "parameters": {"pooling": "cls"}}),
        (QuestionAnsweringRequest, {"inputs": QUESTION | {"c": "d"}}),
        (TokenClassificationRequest, {"inputs": "a", "parameters": {"stride": -1}}),
        *((EmbedRequest, {"inputs": each}) for each in (1, [1, "a"], [[1], "a"], [-1], [["a"]])),
        (EmbedRequest, {"inputs": None}),
        *((PredictRequest, {"inputs": each}) for each in (["a", "b", "c"], [["a"] * 3], [[]])),
        *((EmbeddingsRequest, {"model": "m", "input": each}) for each in ([], [[]], [1, "a"], 3)),
        (EmbeddingsRequest, {"model": "m", "input": ["\ud800"]}),
    ],
)
def test_what_is_no_request_is_refused(kind, body):
    with pytest.raises(ValidationError):
        kind.model_validate(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (NextSentenceRequest, {"inputs": PAIR}),
        (NextSentenceRequest, {"inputs": [PAIR, PAIR]}),
        (DecodeRequest, {"ids": [1, 2]}),
        (DecodeRequest, {"ids": [[1], []]}),
        (TokenClassificationRequest, {"inputs": "a", "options": {"wait_for_model": True}}),
        *((EmbedRequest, {"inputs": each}) for each in ("a", ["a", "b"], [1, 2], [[1], [2]], [])),
        *((PredictRequest, {"inputs": each}) for each in ("a", ["a", "b"], [["a"], ["a", "b"]])),
        *((EmbeddingsRequest, {"model": "m", "input": each}) for each in ("a", ["a"], [1], [[1]])),
    ],
)
def test_one_or_several_may_be_asked(kind, body):
    assert kind.model_validate(body).model_dump(exclude_unset=True) == body

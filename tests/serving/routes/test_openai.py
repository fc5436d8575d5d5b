"""The client of OpenAI works unchanged."""

import numpy as np
import openai
import pytest

TEXTS = ["the cat sat on a mat", "dogs run"]


@pytest.fixture
def client(server):
    with openai.OpenAI(
        base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
def test_vectors(server, client, encoding):
    options = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="encoder", input=TEXTS, **options)
    _, wanted = server.ask("/embed", {"inputs": TEXTS, "normalize": False})
    found = [each.embedding for each in answer.data]
    if encoding == "base64":
        import base64

        found = [np.frombuffer(base64.b64decode(each), dtype="<f4") for each in found]
    np.testing.assert_allclose(np.array(found), wanted, atol=1e-5)
    assert [each.index for each in answer.data] == [0, 1]
    _, tokens = server.ask("/v1/tokenize", {"inputs": TEXTS})
    num_tokens = sum(each["n_tokens"] for each in tokens["results"])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == num_tokens
    assert answer.model == "encoder"


def test_one_text_or_its_tokens(server, client):
    ids = server.engine.models["encoder"].tokenizer.encode(TEXTS[0]).ids
    wanted = client.embeddings.create(model="encoder", input=TEXTS[0]).data[0].embedding
    for given in (ids, [ids]):
        found = client.embeddings.create(model="encoder", input=given).data[0].embedding
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    short = client.embeddings.create(model="encoder", input=TEXTS[0], dimensions=4).data[0]
    np.testing.assert_allclose(short.embedding, wanted[:4], atol=1e-5)


def test_models(server, client):
    assert {each.id for each in client.models.list()} == set(server.folders)
    assert client.models.retrieve("entities").owned_by == "bertline"
    with pytest.raises(openai.NotFoundError) as told:
        client.models.retrieve("gpt")
    assert told.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({"model": "gpt", "input": "a"}, openai.NotFoundError, "model"),
        ({"model": "encoder", "input": "a " * 500}, openai.BadRequestError, "input"),
        ({"model": "encoder", "input": ["a", "a " * 500]}, openai.BadRequestError, "input[1]"),
        ({"model": "encoder", "input": []}, openai.BadRequestError, "input"),
        (
            {"model": "encoder", "input": "a", "dimensions": 99},
            openai.BadRequestError,
            "dimensions",
        ),
    ],
)
def test_mistakes_are_those_that_the_client_knows(client, body, kind, param):
    with pytest.raises(kind) as told:
        client.embeddings.create(**body)
    assert told.value.param == param
    assert told.value.type == "invalid_request_error"


def test_tokens_are_computed_and_counted_as_they_are(client):
    one, other = (
        client.embeddings.create(model="encoder", input=ids)
        for ids in ([[7, 8, 9]], [[8, 7, 9, 9]])
    )
    assert one.usage.prompt_tokens == 3 and other.usage.prompt_tokens == 4
    assert not np.allclose(one.data[0].embedding, other.data[0].embedding)


def test_null_stands_for_what_is_left_out(server):
    body = {"model": "encoder", "input": TEXTS}
    wanted = server.ask("/v1/embeddings", body)
    nulls = dict.fromkeys(("encoding_format", "dimensions", "user"))
    assert server.ask("/v1/embeddings", body | nulls) == wanted
    assert wanted[0] == 200

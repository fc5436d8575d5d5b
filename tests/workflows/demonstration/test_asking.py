"""The demo's questions, asked of a real server of small models."""

import pytest
from finished_demos import QUESTIONS, TASKS
from running import start, write_models

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from serving.engine import Engine
from serving.models import close_models, load_models
from workflows.demonstration.asking import Connection, ask_everything, routes_left_out
from workflows.demonstration.serving import print_answers

OTHERS = {"/hf/question-answering", "/embed", "/v1/embeddings", "/health", "/info"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The models by the names that the demo gives them, and an encoder without heads."""
    root = tmp_path_factory.mktemp("models")
    small = write_models(root)
    _, model, tokenizer = load_model_folder(small["encoder"])
    model.heads.clear()
    save_model_folder(root / "bare", model, tokenizer, card="")
    chosen = {name: small[each] for name, each in TASKS.items()}
    return {"encoder": small["encoder"], "bare": root / "bare"} | chosen


@pytest.fixture
def connect(folders):
    """Starts a server whose encoder is the one of this name, and connects to it."""
    ends = []

    def connect_to(encoder="encoder"):
        models = load_models(
            {"encoder": folders[encoder]} | {name: folders[name] for name in TASKS}
        )
        server, stop = start(Engine(models), folders)
        connection = Connection(f"http://{server.host}:{server.port}")
        ends.extend([connection.close, stop, lambda: close_models(list(models.values()))])
        return connection

    yield connect_to
    for end in ends:
        end()


def test_every_route_that_answers_questions_is_asked_one(connect):
    server = connect()
    replies = {each.route: each for each in ask_everything(server, QUESTIONS)}
    document = server.ask("/openapi.json")
    ours = {path for path, methods in document["paths"].items() if "post" in methods}
    assert replies.keys() == {path for path in ours if path.startswith("/v1/")} | OTHERS
    assert all(each.milliseconds > 0 for each in replies.values())
    lines = [line for each in replies.values() for line in str(each).splitlines()]
    assert all(len(line) <= 100 for line in lines)


def test_what_is_told_is_what_the_server_says_beside_what_is_true(connect):
    server = connect()
    told = {each.route: each.answer for each in ask_everything(server, QUESTIONS)}
    body = {"model": "library", "inputs": QUESTIONS.passage}
    best = server.ask("/v1/classify", body)["results"][0]["scores"][0]
    assert told["/v1/classify"].startswith(f"{best['label']} {best['score']:.2f}, ")
    assert told["/v1/classify"].endswith("; it is of good")
    assert told["/v1/ner"].endswith("; there are cat PER, mat LOC")
    assert told["/v1/qa"].endswith("; the docstring has “on the mat”")
    assert told["/v1/fill-mask"].endswith("; it was “sat”")
    assert told["/v1/decode"] == "“the cat sat on the mat”", "the vocabulary has no full stop"
    assert told["/v1/features"].split(" …")[0] == told["/v1/embeddings"].split(" …")[0]


def test_of_an_encoder_without_pretraining_heads_less_is_asked_and_said_so(connect, capsys):
    server = connect("bare")
    asked = {each.route for each in ask_everything(server, QUESTIONS)}
    left_out = routes_left_out(server.ask("/info")["models"]["encoder"]["heads"])
    assert left_out == ["/v1/fill-mask", "/v1/next-sentence", "/v1/pseudo-perplexity"]
    assert not asked & set(left_out) and {"/v1/features", "/v1/qa"} < asked
    print_answers(server.address, QUESTIONS)
    assert f"left out: {', '.join(left_out)}: the encoder has no such" in capsys.readouterr().out


def test_a_refusal_and_a_server_that_is_gone_are_user_errors(connect):
    server = connect()
    with pytest.raises(UserError, match="the server refused, 404: .*no model 'nobody'"):
        server.ask("/v1/classify", {"model": "nobody", "inputs": "cat"})
    with pytest.raises(UserError, match="does not answer"):
        Connection("http://127.0.0.1:9").ask("/health")

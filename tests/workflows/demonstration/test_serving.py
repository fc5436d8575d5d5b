"""A finished demo serves real models, asks each route, and leaves no process behind."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from finished_demos import (
    QUESTIONS,
    TASKS,
    folder_of,
    heed_ctrl_c,
    read_until,
    servers_of,
    start_demo,
    wait_until_gone,
    write_finished_demo,
)
from pretraining_runs import REPOSITORY
from running import start, write_models

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from serving.engine import Engine
from serving.models import close_models, load_models
from workflows.demonstration.serving import (
    Connection,
    ask_everything,
    print_answers,
    routes_left_out,
)

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


ROUTES = (
    "/v1/classify", "/v1/ner", "/v1/qa", "/v1/explain", "/v1/fill-mask", "/v1/next-sentence",
    "/v1/pseudo-perplexity", "/v1/features", "/v1/similarity", "/v1/tokenize", "/v1/decode",
    "/hf/question-answering", "/embed", "/v1/embeddings", "/health", "/info",
)  # fmt: skip


@pytest.fixture
def demo(tmp_path):
    """The arguments of a finished demo under `tmp_path`; no server of it is left in the end."""
    yield write_finished_demo(tmp_path)
    left = servers_of(tmp_path)
    for process in left:
        process.kill()
    assert not left


def test_without_a_terminal_it_asks_and_ends_and_its_command_serves_again(demo, tmp_path):
    process = start_demo(demo, cwd=REPOSITORY)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert output.startswith("the table\n")
    lines = output.splitlines()
    for route in ROUTES:
        assert sum(line.startswith(f"{route} ") for line in lines) == 1, route
    address = re.search(r"the API's page  (http://\S+)/docs", output)[1]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)
    assert not servers_of(tmp_path)
    command = output[output.index("its page at") :].partition("\n")[2]
    again = subprocess.Popen(
        f"exec {command.strip()} --port 0", shell=True, cwd=REPOSITORY,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        found, _ = read_until(again.stdout, r"ready at (http://\S+),")
        with urllib.request.urlopen(f"{found[1]}/info", timeout=30) as response:
            names = json.load(response)["models"]
            assert [*names] == ["encoder", "library", "parameters", "answers"]
        with urllib.request.urlopen(f"{found[1]}/docs", timeout=30) as response:
            assert b"<html" in response.read()
    finally:
        again.terminate()
        again.communicate(timeout=60)


def test_on_a_terminal_it_serves_until_ctrl_c(demo, tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, REPOSITORY / "workflows" / "demo.py", *demo],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as terminal:
        _, read = read_until(terminal, "serving until Ctrl-C")
        address = re.search(r"the API's page  (http://\S+)/docs", read)[1]
        with urllib.request.urlopen(f"{address}/health", timeout=30) as response:
            assert response.status == 200
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the server, too
        read_until(terminal, "ended; the same server again")
        assert process.wait(60) == 0
    assert not servers_of(tmp_path)


@pytest.mark.parametrize(
    ("moment", "sent"),
    [
        ("starting", signal.SIGTERM),
        ("/v1/classify", signal.SIGINT),
        ("/v1/classify", signal.SIGKILL),
        ("serving until Ctrl-C", signal.SIGTERM),
    ],
)
def test_the_server_ends_with_the_demo_whatever_ends_that(demo, tmp_path, moment, sent):
    process = start_demo([*demo, "--serve", "yes"])
    read_until(process.stdout, moment)
    while not servers_of(tmp_path):
        time.sleep(0.01)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    if sent == signal.SIGKILL:
        wait_until_gone(tmp_path)
        return
    assert not servers_of(tmp_path), "it had ended before the demo did"
    has_served = moment == "serving until Ctrl-C"
    assert process.returncode == (0 if has_served else 130)
    assert errors == ("" if has_served else "stopped; the same command goes on\n")


def test_a_server_that_does_not_start_is_one_line(demo, tmp_path):
    weights = tmp_path / "runs" / "docs_answers-pretrained" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    process = start_demo(demo)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 2 and "the table" in output
    assert errors.startswith("error: the server did not start, exit code 2")
    assert "docs_answers-pretrained" in errors and errors.count("\n") == 1
    assert str(folder_of(demo) / "server.log") in errors


def test_a_server_that_ends_by_itself_is_one_line(demo, tmp_path):
    process = start_demo([*demo, "--serve", "yes"])
    read_until(process.stdout, "serving until Ctrl-C")
    for server in servers_of(tmp_path):
        server.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("error: the server ended, with exit code -9")
    assert errors.count("\n") == 1


def test_told_not_to_serve_it_prints_the_command(demo):
    process = start_demo([*demo, "--serve", "no"])
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "serving  " not in output and "/v1/qa" not in output
    for name in ("encoder", "library", "parameters", "answers"):
        assert f"--model {name}=/" in output

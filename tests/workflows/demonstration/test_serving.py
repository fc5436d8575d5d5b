"""A finished demo serves real models, asks each route, and leaves no process behind."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

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
from workflows.demo import main
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


@contextmanager
def connected(folders, encoder="encoder"):
    """Serves the demo's models, with the encoder of this name; yields a connection to them."""
    models = load_models({"encoder": folders[encoder]} | {name: folders[name] for name in TASKS})
    server, stop = start(Engine(models), folders)
    with closing(Connection(f"http://{server.host}:{server.port}")) as connection:
        yield connection
    stop()
    close_models(list(models.values()))


@pytest.fixture(scope="module")
def server(folders):
    with connected(folders) as connection:
        yield connection


@pytest.fixture(scope="module")
def replies(server):
    """What the demo prints of each route."""
    return {reply.route: reply for reply in ask_everything(server, QUESTIONS)}


def test_every_route_that_answers_questions_is_asked_one(server, replies):
    document = server.ask("/openapi.json")
    ours = {path for path, methods in document["paths"].items() if "post" in methods}
    of_others = {"/v1/zero-shot", "/v1/rerank"}  # for which the demo trains no model
    assert replies.keys() == {path for path in ours if path.startswith("/v1/")} - of_others | OTHERS
    assert all(reply.milliseconds > 0 for reply in replies.values())
    lines = [line for reply in replies.values() for line in str(reply).splitlines()]
    assert all(len(line) <= 100 for line in lines)


def test_answers_are_those_of_the_server_next_to_the_truth(server, replies):
    answers = {route: reply.answer for route, reply in replies.items()}
    body = {"model": "library", "inputs": QUESTIONS.passage}
    best = server.ask("/v1/classify", body)["results"][0]["scores"][0]
    assert answers["/v1/classify"].startswith(f"{best['label']} {best['score']:.2f}, ")
    assert answers["/v1/classify"].endswith("; it is of good")
    assert answers["/v1/ner"].endswith("; there are cat PER, mat LOC")
    assert answers["/v1/qa"].endswith("; the docstring has “on the mat”")
    assert answers["/v1/fill-mask"].endswith("; it was “sat”")
    assert answers["/v1/decode"] == "“the cat sat on the mat”", "the vocabulary has no full stop"
    assert answers["/v1/features"].split(" …")[0] == answers["/v1/embeddings"].split(" …")[0]


def test_an_encoder_without_pretraining_heads_is_asked_less(folders, capsys):
    with connected(folders, "bare") as server:
        left_out = routes_left_out(server.ask("/info")["models"]["encoder"]["heads"])
        assert left_out == ["/v1/fill-mask", "/v1/next-sentence", "/v1/pseudo-perplexity"]
        print_answers(server.address, QUESTIONS)
    printed = capsys.readouterr().out
    asked = set(re.findall(r"^(/\S+) ", printed, re.MULTILINE))
    assert not asked & set(left_out) and {"/v1/features", "/v1/qa"} < asked
    assert f"left out: {', '.join(left_out)}: the encoder has no such" in printed


def test_a_refusal_and_a_server_that_is_gone_are_user_errors(server):
    with pytest.raises(UserError, match="the server refused, 404: .*no model 'nobody'"):
        server.ask("/v1/classify", {"model": "nobody", "inputs": "cat"})
    with pytest.raises(UserError, match="does not answer"):
        Connection("http://127.0.0.1:9").ask("/health")


@pytest.fixture
def demo(tmp_path):
    """The arguments of a finished demo under `tmp_path`; no server of it is left in the end."""
    yield write_finished_demo(tmp_path)
    left = servers_of(tmp_path)
    for process in left:
        process.kill()
    assert not left


@pytest.mark.slow
def test_without_a_terminal_it_asks_and_ends(demo, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert main(demo) == 0
    output, errors = capfd.readouterr()
    assert not errors and output.startswith("the table\n")
    routes = re.findall(r"^(/\S+) +[\d.]+ ", output, re.MULTILINE)
    assert len(routes) == len(set(routes)) > 12 and set(routes) > OTHERS
    address = re.search(r"the API's page  (http://\S+)/docs", output)[1]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=5)
    assert not servers_of(tmp_path)
    # The printed command is that of the server which has answered, at the default port.
    printed = output[output.index("its page at") :].partition("\n")[2]
    command = shlex.split(printed.replace("\\\n", ""))
    assert command[1:3] == ["-m", "serving"] and command[3::2] == ["--model"] * 4
    models = dict(model.split("=") for model in command[4::2])
    assert [*models] == ["encoder", "library", "parameters", "answers"]
    assert all((Path(folder) / "config.json").is_file() for folder in models.values())


@pytest.mark.slow
def test_the_printed_command_serves_again(demo, capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert main([*demo, "--serve", "no"]) == 0
    command = capsys.readouterr().out.partition("the API's page at")[2].partition("\n")[2]
    process = subprocess.Popen(
        f"exec {command.strip()} --port 0", shell=True, stdout=subprocess.PIPE, text=True
    )
    try:
        match, _ = read_until(process.stdout, r"ready at (http://\S+),")
        with urllib.request.urlopen(f"{match[1]}/info", timeout=30) as response:
            names = json.load(response)["models"]
            assert [*names] == ["encoder", "library", "parameters", "answers"]
        with urllib.request.urlopen(f"{match[1]}/docs", timeout=30) as response:
            assert b"<html" in response.read()
    finally:
        process.terminate()
        process.communicate(timeout=60)


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
        ("starting", signal.SIGKILL),
        pytest.param("starting", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("/v1/classify", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("/v1/classify", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("serving until Ctrl-C", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_the_server_ends_with_the_demo(demo, tmp_path, moment, sent):
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


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error_of_one_line(demo, tmp_path, capsys):
    weights = tmp_path / "runs" / "docs_answers-pretrained" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(demo) == 2
    output, errors = capsys.readouterr()
    assert "the table" in output
    assert errors.startswith("error: the server did not start, exit code 2")
    assert "docs_answers-pretrained" in errors and errors.count("\n") == 1
    assert str(folder_of(demo) / "server.log") in errors


@pytest.mark.slow
def test_a_server_that_ends_by_itself_is_an_error_of_one_line(demo, tmp_path):
    process = start_demo([*demo, "--serve", "yes"])
    read_until(process.stdout, "serving until Ctrl-C")
    for server in servers_of(tmp_path):
        server.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("error: the server ended, with exit code -9")
    assert errors.count("\n") == 1


def test_without_serving_it_prints_the_command(demo, capsys):
    assert main([*demo, "--serve", "no"]) == 0
    output, errors = capsys.readouterr()
    assert not errors and "serving  " not in output and "/v1/qa" not in output
    for name in ("encoder", "library", "parameters", "answers"):
        assert f"--model {name}=/" in output

"""Small models, servers of them over HTTP, and how a test asks and waits."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import uvicorn
from forked_programs import ForkedProgram
from small_tasks import write_encoder

from bert_core.config import ModernConfig
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.classification import Classification
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head
from serving.app import create_app
from serving.engine import Engine
from serving.models import close_models, load_models


def wait_until(holds, seconds=60):
    """Until it holds; fails where it does not within so many seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextmanager
def repeating(function, num_threads):
    """Threads that call a function again and again, until the block ends."""
    ended = threading.Event()

    def go_on():
        while not ended.is_set():
            function()

    threads = [threading.Thread(target=go_on) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def ask_at(host, port, path, body=None, *, method=None, headers=None):
    """Status, answer and headers; a body that is no string or bytes is sent as JSON."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    if body is not None and not isinstance(body, str | bytes):
        body = json.dumps(body)
    kind = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(
        method or ("GET" if body is None else "POST"), path, body, kind | (headers or {})
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_json = content and "json" in response.headers.get("Content-Type", "")
    return response.status, json.loads(content) if is_json else content, response.headers


def raw_status(server, path, heads, body=b"", headers=None):
    """The status of a request with these lines as its head, and no other."""
    lines = [*heads, *(f"{name}: {value}" for name, value in (headers or {}).items())]
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", *lines, f"Content-Length: {len(body)}"]
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return int(connection.recv(12)[9:])


def answers(server, path, model, inputs, **options):
    """The results for inputs, asked together; each asked alone has the same."""
    status, content = server.ask(path, {"model": model, "inputs": inputs} | options)
    assert status == 200, content
    assert content["model"] == model
    for one, result in zip(inputs, content["results"], strict=True):
        _, alone = server.ask(path, {"model": model, "inputs": one} | options)
        assert_alike(alone["results"], [result])
    return content["results"]


def assert_alike(found, wanted):
    """Equal but for rounding."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_alike(found[key], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    elif isinstance(wanted, float):
        # A perplexity is an exponential: there rounding is a share of it.
        assert found == pytest.approx(wanted, abs=1e-5, rel=3e-6)
    else:
        assert found == wanted


SMALL_TASKS = {
    "sentiment": (
        "classification",
        Classification(labels=("bad", "good"), max_length=64, thresholds={"good": 0.9}),
    ),
    "paraphrase": (
        "classification",
        Classification(labels=("no", "yes"), second_column="second", max_length=64),
    ),
    "topics": (
        "classification",
        Classification(
            kind="multiple",
            labels=("cats", "dogs", "mats"),
            max_length=32,
            thresholds={"dogs": 0.9},
        ),
    ),
    "grade": ("classification", Classification(kind="regression")),
    "entities": (
        "ner",
        Tagging(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), max_length=32),
    ),
    "answers": ("squad", QuestionAnswering(max_length=48, stride=12)),
    "entailment": ("mnli", TASKS["mnli"]),
    "relevance": ("rerank", Reranking(max_length=64)),
}
"""The name of each model: its task's name in the catalog, and the task."""


@dataclass(frozen=True)
class Server:
    """A running server, its models, and their folders."""

    host: str
    port: int
    engine: Engine
    folders: dict[str, Path]
    prefix: str = ""

    @property
    def address(self):
        """What a client is given."""
        return f"http://{self.host}:{self.port}{self.prefix}"

    def ask(self, path, body=None, *, method=None, headers=None):
        """Status and answer; a body that is no string or bytes is sent as JSON."""
        status, content, _ = self.ask_whole(path, body, method=method, headers=headers)
        return status, content

    def ask_whole(self, path, body=None, *, method=None, headers=None):
        """Status, answer and headers."""
        path = self.prefix + path
        return ask_at(self.host, self.port, path, body, method=method, headers=headers)


def write_models(root):
    """An encoder, and models for it that differ in their heads alone; by name."""
    folders = {"encoder": write_encoder(root / "encoder")}
    _, model, tokenizer = load_model_folder(folders["encoder"])
    for parameter in model.encoder.parameters():
        if parameter.ndim > 1:
            parameter.data *= 10  # so that states differ from text to text
    save_model_folder(folders["encoder"], model, tokenizer, card="")
    for number, (name, (task_name, task)) in enumerate(SMALL_TASKS.items()):
        _, model, tokenizer = load_model_folder(folders["encoder"])
        torch.manual_seed(number)
        add_task_head(model, task)
        for head in model.heads.values():
            for parameter in head.parameters():  # so that what it says varies
                parameter.data.normal_(std=1.0)
        folders[name] = root / name
        config = task_config(task_name, task)
        save_model_folder(folders[name], model, tokenizer, card="", extra_config=config)
    return folders


def write_modern(folder, encoder, pooling):
    """A model of the modern block: of masked words, or a classifier that reads so."""
    _, _, tokenizer = load_model_folder(encoder)
    torch.manual_seed(2)
    config = ModernConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=4,
        num_attention_heads=2, intermediate_size=48, local_attention=8,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    model = Bert.for_pretraining(config, next_sentence=False)
    said = {}
    if pooling is not None:
        values = {"labels": ("a", "b"), "max_length": 64, "classifier_pooling": pooling}
        task = TASKS["classification"].model_copy(update=values)
        add_task_head(model, task)
        said = task_config("classification", task)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=0.2)
    save_model_folder(folder, model, tokenizer, extra_config=said)
    return folder


def start(
    engine, folders, keys=None, cors_origins=(), *, prefix="", root_path="", tracing=None, **more
):
    """A server on a port of its own, and what stops it.

    Behind a `prefix` that requests come with, as from Ray Serve; or behind a proxy that has taken
    it off them, which uvicorn is told as `root_path`. `more` is for `create_app`.
    """
    app = create_app(engine, keys, cors_origins, tracing, **more)
    app = _mounted(app, prefix) if prefix else app
    config = uvicorn.Config(app, "127.0.0.1", 0, log_level="critical", root_path=root_path)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]

    def stop():
        server.should_exit = True
        thread.join()

    return Server("127.0.0.1", port, engine, folders, prefix), stop


@contextmanager
def serving(folders, limits=None, loader=None, **more):
    """A server of model folders by name, until the block ends; `more` is for `start`."""
    models = load_models(folders, loader)
    running, stop = start(Engine(models, limits), folders, **more)
    try:
        yield running
    finally:
        stop()
        close_models(list(models.values()))


def _mounted(app, prefix):
    """As Ray Serve passes requests on: the path is whole."""

    async def pass_on(scope, receive, send):
        await app(scope | {"root_path": prefix}, receive, send)

    return pass_on


class Started:
    """A server that runs: how it is asked, and its lines on standard output and error."""

    def __init__(self, process):
        self.process, self.port, self.lines, self.said = process, 0, [], []

    def ask(self, path, body=None, *, method=None, headers=None):
        """Status and answer."""
        return ask_at("127.0.0.1", self.port, path, body, method=method, headers=headers)[:2]


@contextmanager
def started(arguments, environment, before=None, *, python=None):
    """Runs a server at a port of its own, until the block ends; `before` is called within it.

    With options for `python`, which may be none, it starts as a user starts it.
    """
    command = ["serving", "--port", "0", "--threads", "1", *arguments, "--no-log_requests"]
    process = (ForkedProgram if python is None else subprocess.Popen)(
        command if python is None else [sys.executable, *python, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=before,
    )
    server = Started(process)
    reading = threading.Thread(target=lambda: server.said.extend(process.stderr))
    reading.start()
    try:
        for line in process.stdout:
            server.lines.append(line.strip())
            if line.startswith("ready at "):
                break
        server.port = int(server.lines[-1].split()[2].rstrip(",").rpartition(":")[2])
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        reading.join()
        process.stdout.close()
        process.stderr.close()

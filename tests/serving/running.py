"""Small models, one encoder with six heads, and servers of them over real HTTP."""

import threading
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn
from asking import ask_at
from small_tasks import write_encoder

from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head
from serving.app import create_app
from serving.engine import Engine

SMALL_TASKS = {
    "sentiment": ("classification", Classification(labels=("bad", "good"), max_length=64)),
    "paraphrase": (
        "classification",
        Classification(labels=("no", "yes"), second_column="second", max_length=64),
    ),
    "topics": (
        "classification",
        Classification(kind="multiple", labels=("cats", "dogs", "mats"), max_length=32),
    ),
    "grade": ("classification", Classification(kind="regression")),
    "entities": (
        "ner",
        Tagging(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), max_length=32),
    ),
    "answers": ("squad", QuestionAnswering(max_length=48, stride=12)),
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


def _mounted(app, prefix):
    """As Ray Serve passes requests on: the path is whole."""

    async def pass_on(scope, receive, send):
        await app(scope | {"root_path": prefix}, receive, send)

    return pass_on

"""The whole line, from text to answers over HTTP, with names that break what takes them as plain.

A storage folder and labels: each character in them means something to an address, a shell, a
pattern, Markdown, a formula or a database.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from finetuning_runs import WORDS
from hostile_labels import HOSTILE_LABELS

from bert_core.tasks.label_values import stripped
from bert_core.tasks.metrics import metric_parts
from serving.registry import sqlite_uri
from workflows.runs.mlflow_run import open_client

pytestmark = [pytest.mark.ray, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
HOSTILE = "a b%20c?d=e;f'g [x]*#ü&{1}$HOME+%"
NAME = "tagger & more"
SENTENCES = 120
TYPES = [kind for label in HOSTILE_LABELS if (kind := stripped(f"B-{label}")[2:])]
"""As they are read: what nobody sees is no part of a tag's end, and no type of its own."""


def write_tags(folder):
    """Sentences in which each word is an entity of another type, of all the hostile labels."""
    folder.mkdir(parents=True)
    rows = []
    for number in range(SENTENCES):
        labels = [TYPES[(number + each) % len(TYPES)] for each in range(10)]
        rows.append({"tokens": WORDS, "tags": [f"B-{label}" for label in labels]})
    for split in ("train", "dev"):
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def write_text(folder):
    folder.mkdir(parents=True)
    sentences = [" ".join(WORDS[each % 7 :] + WORDS[: each % 5]) + "." for each in range(400)]
    documents = ["\n".join(sentences[each : each + 4]) for each in range(0, 400, 4)]
    (folder / "text?.txt").write_text("\n\n".join(documents))
    return folder


class Line:
    """Commands that are run in turn."""

    def __init__(self, folder, ray_address):
        self.folder, self.storage = folder, folder / "storage"
        self.environment = os.environ | {
            "RAY_ADDRESS": ray_address,
            "HOME": str(folder),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(REPOSITORY),
        }

    def run(self, program, *arguments, **options):
        given = [*arguments, *(f"--{name.replace('__', '.')}={options[name]}" for name in options)]
        done = subprocess.run(
            [sys.executable, REPOSITORY / "workflows" / f"{program}.py", *map(str, given)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{program}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def finetune(self, name):
        """Trains and registers a tagger of all the hostile labels."""
        data = self.folder / "data"
        return self.run(
            "finetune",
            storage=self.storage,
            cluster__threads_per_worker=1,
            task="ner",
            data=data if data.exists() else write_tags(data),
            model="models:/bert@latest-trained",
            name=name,
            register=NAME,
            epochs=30,
            optimizer__peak_learning_rate=5e-3,
            options__word_column="tokens",
            options__tag_column="tags",
            options__max_length=64,
        )

    @contextmanager
    def serving(self, *models):
        """A server of models, until the block ends."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        command = [sys.executable, "-m", "serving", "--port", str(port)]
        command += [part for model in models for part in ("--model", str(model))]
        command += ["--tracking_uri", sqlite_uri(self.storage / "mlflow" / "mlflow.db")]
        log = self.folder / "server.log"
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )
        try:
            yield Server(port, process, log)
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class Server:
    """Where a server listens, its process and its log."""

    port: int
    process: subprocess.Popen
    log: Path


@pytest.fixture(scope="module")
def line(tmp_path_factory, ray_cluster):
    """An encoder and a tagger that were trained and registered in such a folder."""
    root = tmp_path_factory.mktemp("line")
    line = Line(root / HOSTILE, ray_cluster)
    text, storage = write_text(line.folder / "text"), line.storage
    shards = line.folder / "shards"
    line.run("prepare", text=text, output=shards, vocabulary_size=120, heldout_share=0.1)
    common = {"storage": storage, "cluster__threads_per_worker": 1}
    line.run(
        "pretrain",
        **common,
        shards=shards,
        name="encoder",
        model__size="tiny",
        model__num_hidden_layers=1,
        model__max_position_embeddings=64,
        batch__global_batch_size=8,
        phases='[{"sequence_length": 32, "steps": 4}]',
        optimizer__warmup_steps=2,
        evaluation__num_rows=16,
    )
    line.trained = line.finetune("tagger")
    return line


def test_mlflow_has_all_figures_of_all_labels(line):
    parts = metric_parts(TYPES)
    client = open_client(sqlite_uri(line.storage / "mlflow" / "mlflow.db"))
    version = client.get_model_version_by_alias(NAME, "latest-trained")
    run = client.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    wanted = {f"dev/f1_{part}" for part in parts.values()}
    assert wanted <= set(run.data.metrics)
    assert {f"metric.{each}" for each in wanted} <= set(version.tags)
    assert "&lt;script&gt;" in version.description and "<script>" not in version.description
    rows = [each for each in version.description.splitlines() if each.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}, "two cells in each"
    names = {artifact.path for artifact in client.list_artifacts(version.run_id, "dev")}
    assert {"dev/report.md", "dev/report.json", "dev/confusion.png"} <= names
    assert "records not sent" not in line.trained and "\x1b" not in line.trained


def test_nothing_is_written_beside_the_folder(line):
    assert {each.name for each in line.folder.parent.iterdir()} == {HOSTILE}
    assert {"mlflow", "models", "runs"} <= {each.name for each in line.storage.iterdir()}


def test_it_is_evaluated_and_served(line):
    report = line.folder / "report"
    told = line.run(
        "evaluate",
        model=f"models:/{NAME}@latest-trained",
        data=line.folder / "data",
        storage=line.storage,
        report=report,
        output=line.folder / "out.parquet",
        slice_by="tags",
        num_resamples=100,
    )
    assert "f1_R&D" in told
    found = json.loads((report / "report.json").read_text(encoding="utf-8"))
    assert {each["name"] for each in found["classes"]} == set(TYPES)
    assert "<script>" not in (report / "report.md").read_text(encoding="utf-8")
    of_run = line.storage / "runs" / "tagger" / "model"
    with line.serving(f"models:/{NAME}@latest-trained", of_run) as server:
        for model in (NAME, "model"):
            answer = post(server, "/v1/ner", {"inputs": " ".join(WORDS), "model": model})
            types = {each["type"] for each in answer["results"][0]["entities"]}
            assert types and types <= set(TYPES)
        with urlopen(f"http://127.0.0.1:{server.port}/metrics") as metrics:
            assert b"bertline" in metrics.read()


def test_a_moved_storage_goes_on(line):
    """The last test here: the storage has another name from now on."""
    before, line.storage = line.storage, line.folder / "moved storage"
    shutil.move(before, line.storage)
    told = line.run("registry", "lineage", f"{NAME}@latest-trained", storage=line.storage)
    assert "models:/bert/1" in told and "not read" not in told
    told = line.finetune("tagger")
    assert f"{line.storage}/runs/tagger/model" in told and f"{before}/" not in told
    line.finetune("again")
    assert not before.exists()
    client = open_client(sqlite_uri(line.storage / "mlflow" / "mlflow.db"))
    versions = client.search_model_versions(f"name = '{NAME}'")
    assert {version.version for version in versions} == {1, 2}
    assert len([*(line.storage / "mlflow" / "artifacts" / "models").iterdir()]) == 3
    with line.serving(f"one=models:/{NAME}/1", f"two=models:/{NAME}/2") as server:
        for model in ("one", "two"):
            assert post(server, "/v1/ner", {"inputs": "ba keli", "model": model})["model"] == model
    told = line.run("reproduce", "encoder", storage=line.storage)
    assert "the same to the bit" in told


def post(server, path, body):
    request = Request(
        f"http://127.0.0.1:{server.port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    end = time.monotonic() + 120
    while True:
        try:
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code != 503:
                raise AssertionError(error.read()) from error
        except OSError as error:
            told = f"{error}: {server.log.read_text()[-3000:]}"
            assert server.process.poll() is None and time.monotonic() < end, told
        time.sleep(0.3)

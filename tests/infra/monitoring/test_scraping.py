"""A real Prometheus reads a training, a server and a replica: every query of ours has an answer."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from monitoring_files import (
    DASHBOARDS,
    FOLDER,
    filled,
    metrics_of,
    panels,
    rules,
    variable_metrics,
)
from pretraining_runs import Run, write_corpus
from ray_serving import serving_on_ray
from registered_versions import other_weights
from running import started, write_models
from yaml_files import document

from workflows.runs.mlflow_run import create_store, open_client
from workflows.versions.registration import register_model_folder

HOST = "127.0.0.1"
SECONDS = 1
"""Between two scrapes, and two looks at the rules."""
WAIT_SECONDS = 150
LONG = "the cat sat on the mat " * 40


class Prometheus:
    """A Prometheus that runs, and what it is asked."""

    def __init__(self, port):
        self._address = f"http://{HOST}:{port}/api/v1"

    def get(self, path, **parameters):
        """The data of an answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._address}/{path}?{query}", timeout=20) as response:
            return json.load(response)["data"]

    def values(self, expression):
        """What an expression is now: labels and value of each series."""
        found = self.get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def alerts(self):
        """Names of the alerts that fire, each with the run it is about."""
        found = self.get("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("run"))
            for each in found
            if each["state"] == "firing"
        }


@contextmanager
def prometheus_of(ray_folder, server, folder):
    """Prometheus with the files of infra/monitoring; only paths and times are others."""
    shutil.copy(FOLDER / "rules.yaml", folder)
    config = document(FOLDER / "prometheus.yaml")
    config["global"] = dict.fromkeys(config["global"], f"{SECONDS}s")
    for job in config["scrape_configs"]:
        (discovery,) = job["file_sd_configs"]
        discovery["refresh_interval"] = "1s"
        discovery["files"] = [
            path.replace("/tmp/ray/", f"{ray_folder}/ray/") for path in discovery["files"]
        ]
    (folder / "servers.yaml").write_text(yaml.safe_dump([{"targets": [f"{HOST}:{server}"]}]))
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HOST}:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        asked = Prometheus(port)
        until(lambda: answers(asked), 30)
        yield asked
    finally:
        process.terminate()
        process.wait(30)


def answers(prometheus):
    """Whether it has begun."""
    try:
        return prometheus.get("status/runtimeinfo")
    except OSError:
        return None


def until(found, seconds=WAIT_SECONDS):
    """What `found` gives, when it gives something."""
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return result


@pytest.fixture
def ray_folder():
    """A short path: Ray has sockets below it."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def store(tmp_path):
    """MLflow with a model of two versions, of which the alias is the first; and what registers."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    create_store(uri)
    run_id = open_client(uri).create_run("0").info.run_id
    first = write_models(tmp_path / "models")["sentiment"]

    def register(folder, *aliases):
        more = {"tracking_uri": uri, "card": "", "tags": {}, "metrics": {}, "aliases": aliases}
        return register_model_folder(folder, name="mood", run_id=run_id, **more)

    assert register(first, "champion") == 1
    assert register(other_weights(first, tmp_path / "second", 2.0)) == 2
    return uri


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed here")
def test_every_query_has_an_answer(store, ray_folder, subprocess_environment, tmp_path):
    environment = subprocess_environment | {"RAY_TMPDIR": str(ray_folder)}
    model, cache = "models:/mood@champion", str(tmp_path / "cache")
    alone = ["--model", model, "--tracking_uri", store, "--cache", cache, "--poll_seconds", "1"]
    arguments = {
        "model": [model],
        "tracking_uri": store,
        "cache": cache,
        "poll_seconds": 1,
        "insecure": True,
    }
    one = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.5}}
    with (
        started(alone, environment) as server,
        serving_on_ray(arguments, environment, tmp_path, **one) as serving,
        prometheus_of(ray_folder, server.port, tmp_path) as prometheus,
        training(serving, tmp_path) as run,
    ):
        run.until_step(20)
        open_client(store).set_registered_model_alias("mood", "champion", "2")
        assert unanswered(prometheus, server, serving) == set()
        look_at_replica_and_run(prometheus)
        groups = until(lambda: all_evaluated(prometheus))
        assert {rule["name"] for group in groups for rule in group["rules"]} == rules().keys()
        run.kill()
        diverged = diverging(serving, tmp_path)
        assert "not finite" in diverged.finish(code=2)
        until(lambda: ("LossNotFinite", "diverged") in prometheus.alerts())
        missing = [
            (name, metric)
            for name, rule in rules().items()
            for metric in metrics_of(rule["expr"])
            if not prometheus.values(metric)
        ]
        assert missing == []


def unanswered(prometheus, *servers):
    """What of all that dashboards ask has had no answer, while the servers were asked."""
    left = {each for path in DASHBOARDS for each in asked_by(path)}
    deadline = time.monotonic() + WAIT_SECONDS
    while left and time.monotonic() < deadline:
        for server in servers:
            ask_some(server)
        left = {each for each in left if not prometheus.values(each[1])}
    return left


def asked_by(path):
    """What the panels of a dashboard ask, and what its choices are made of."""
    for panel in panels(path):
        for target in panel["targets"]:
            yield f"{path.stem}: {panel['title']}", filled(target["expr"])
    for metric in variable_metrics(path):
        yield f"{path.stem}: choices", metric


def ask_some(server):
    """Requests that are answered, one whose text is cut, and one that is not of this world."""
    body = {"model": "mood", "inputs": ["a cat sat on the mat", "a dog"]}
    assert server.ask("/v1/classify", body)[0] == 200
    assert server.ask("/v1/classify", body | {"inputs": LONG, "overflow": "right"})[0] == 200
    assert server.ask("/v1/classify", {"model": "mood", "inputs": 3})[0] == 422


def look_at_replica_and_run(prometheus):
    """What comes by Ray is that of one process, under its own names."""
    names = "bertline_model_version", "bertline_request_seconds_bucket", "bertline_requests_total"
    for name in names:
        jobs = {labels["job"] for labels, _ in prometheus.values(name)}
        assert jobs == {"ray", "serving"}, name
    replicas = prometheus.values('bertline_model_version{job="ray"}')
    assert [(each["application"], each["model"]) for each, _ in replicas] == [("bertline", "mood")]
    (step,) = prometheus.values('bertline_training_step{run="watched"}')
    assert step[0]["kind"] == "pretraining" and step[1] > 20
    (begun,) = prometheus.values("time() - bertline_training_progress_timestamp_seconds")
    assert 0 <= begun[1] < 60
    assert not prometheus.values("ray_bertline_training_step")
    newest = prometheus.values("bertline_registry_newest_version")
    assert {value for _, value in newest} == {2.0} and len(newest) == 2


def all_evaluated(prometheus):
    """The groups of rules, when each rule was evaluated."""
    groups = prometheus.get("rules")["groups"]
    return groups if all(rule["health"] == "ok" for g in groups for rule in g["rules"]) else None


@contextmanager
def training(serving, folder):
    """A run on the cluster that serves, until the block ends."""
    run = Run(
        folder / "storage",
        "watched",
        write_corpus(folder / "corpus"),
        steps=200_000,
        settings={"evaluation.every_steps": 50, "checkpoint.every_steps": 50},
        environment=cluster_of(serving),
    )
    driver = run.start()
    try:
        yield driver
    finally:
        driver.kill()


def diverging(serving, folder):
    """A run whose loss is not finite after some steps."""
    return Run(
        folder / "storage",
        "diverged",
        folder / "corpus",
        steps=50,
        settings={"optimizer.peak_learning_rate": 1e30},
        environment=cluster_of(serving),
    )


def cluster_of(serving):
    """What has a command join the cluster that serves."""
    wanted = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "HOME")
    told = {name: serving.environment.get(name, os.environ.get(name, "")) for name in wanted}
    return told | {"RAY_ADDRESS": serving._cluster}

"""infra/serve.yaml itself on a cluster: groups scale apart, drain, are updated, become well again.

One cluster for all of it: to start one takes longer than most of what is tested.
"""

import copy
import http.client
import json
import threading
import time
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
import yaml
from ray_serving import HOST, REPOSITORY, deployed_on_ray
from running import repeating

from serving.client import Client
from serving.keys import add_key

LESS_PATIENT = {"look_back_period_s": 11, "upscale_delay_s": 1, "downscale_delay_s": 4}
LONG_TEXTS = ["the cat sat on the mat " * 50] * 8
NER, FEATURES = "/entities/v1/ner", "/features/v1/features"
BODY = {"inputs": "a cat"}

END_ENCODER = """
import ctypes, threading
for each in threading.enumerate():
    if each.name.startswith("encoder-"):
        end = ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(each.ident), end)
"""
"""Ends the thread of the encoder, when it wakes."""


@pytest.fixture
def key(tmp_path):
    """A key for all, of the servers' file."""
    return add_key(tmp_path / "keys.json", "all", ["predict", "admin"], None)


@pytest.fixture
def example(registry, small_models, tmp_path):
    """The example with these models and keys, on two cores, and less patient."""
    config = yaml.safe_load((REPOSITORY / "infra" / "serve.yaml").read_text())
    entities, features = config["applications"]
    keys = {"api_key_file": str(tmp_path / "keys.json")}
    entities["args"] |= keys | {"tracking_uri": registry.uri, "cache": str(tmp_path / "cache")}
    features["args"] |= keys | {"model": [str(small_models["encoder"])]}
    for application in (entities, features):
        (deployment,) = application["deployments"]
        deployment["ray_actor_options"] = {"num_cpus": 0.25}
        deployment["autoscaling_config"] |= LESS_PATIENT
        deployment["health_check_period_s"] = 1
    return config


@pytest.fixture
def variables(subprocess_environment):
    """The environment that infra/ray-serve.env makes of a node's."""
    lines = (REPOSITORY / "infra" / "ray-serve.env").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if not line.startswith("#")]
    return subprocess_environment | {name: value for name, _, value in pairs}


class Trickle:
    """Requests one after another without retries: on new connections, and on one that is kept."""

    def __init__(self, port, path, key):
        self._port, self._path = port, path
        self._headers = {"Content-Type": "application/json", "X-API-Key": key}
        self._ended = threading.Event()
        self.answered, self.failures = 0, []

    @contextmanager
    def running(self):
        """Asks within `with`."""
        threads = [Thread(target=self._go_on, args=(kept,)) for kept in (False, True)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _go_on(self, is_kept):
        connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        while not self._ended.wait(0.03):
            try:
                connection.request("POST", self._path, json.dumps(BODY), self._headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append((is_kept, repr(error)))
                connection.close()
                continue
            if response.status == 200:
                self.answered += 1
            else:
                self.failures.append((is_kept, response.status, content[:200]))
            if not is_kept:
                connection.close()
        connection.close()


@contextmanager
def flood(address, key):
    """Many who ask for the features of long texts, each again and again, within `with`."""
    with (
        Client(address, api_key=key) as client,
        repeating(lambda: client.features(LONG_TEXTS, overflow="right"), 24),
    ):
        yield


def wait_until(is_so, seconds, serving):
    """Fails with what Ray Serve says of the replicas where it never becomes so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        states = {name: serving.states(name) for name in ("entities", "features")}
        assert time.monotonic() < deadline, states
        time.sleep(0.5)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_groups_in_operation(example, variables, key, tmp_path):
    shown = {"X-API-Key": key}
    begin = time.monotonic()
    with deployed_on_ray(copy.deepcopy(example), variables, tmp_path) as serving:

        def running(name):
            return [each for each, state in serving.states(name).items() if state == "RUNNING"]

        def told(what):
            print(f"{time.monotonic() - begin:.0f} s: {what}", flush=True)

        told("both groups are ready")
        for route in (NER, FEATURES):
            prefix = route.partition("/v1")[0]
            assert serving.ask(route, BODY, headers=shown)[0] == 200
            assert serving.ask(route, BODY)[0] == 401
            assert serving.ask(prefix)[0] == 307
            for path in ("/", "/playground/app.js", "/docs", "/swagger/swagger-ui.css"):
                assert serving.ask(prefix + path)[0] == 200
            assert serving.ask(f"{prefix}/openapi.json")[1]["servers"] == [{"url": prefix}]
        assert serving.ask(NER.replace("entities", "features"), BODY, headers=shown)[0] == 404
        info = serving.ask("/entities/info", headers=shown)[1]
        assert info["models"]["people"]["registered"]["alias"] == "champion"
        (old,) = running("entities")

        with flood(f"http://{HOST}:{serving.port}/features", key):
            wait_until(lambda: len(running("features")) == 2, 90, serving)
            told("the one that is flooded has two replicas")
            assert running("entities") == [old]

        changed = copy.deepcopy(example)
        changed["http_options"]["port"] = serving.port
        changed["applications"][0]["args"]["limits"] = {"max_items": 7}
        entities, features = (Trickle(serving.port, route, key) for route in (NER, FEATURES))
        with entities.running(), features.running():
            serving.deploy(changed)
            wait_until(lambda: set(serving.states("entities")) - {old}, 60, serving)
            wait_until(lambda: old not in serving.states("entities"), 120, serving)
            told("the other one is updated")
            wait_until(lambda: len(serving.states("features")) == 1, 120, serving)
            told("the one that was flooded has one replica")
        assert entities.failures == features.failures == []
        assert entities.answered > 200 and features.answered > 200
        told(f"{entities.answered} and {features.answered} requests without retries: no failure")
        assert serving.ask("/entities/info", headers=shown)[1]["limits"]["max_items"] == 7

        (old,) = running("features")
        serving.run_in_replica(old, END_ENCODER)

        def wake():
            with suppress(OSError, http.client.HTTPException):  # nobody computes it
                serving.ask(FEATURES, BODY, headers=shown)

        waking = Thread(target=wake)
        waking.start()
        wait_until(lambda: old not in serving.states("features"), 30, serving)
        waking.join(10)
        assert not waking.is_alive()
        wait_until(lambda: running("features"), 60, serving)
        with Client(f"http://{HOST}:{serving.port}/features", api_key=key) as client:
            assert client.features("a cat").n_tokens
        told("a replica whose encoder had ended is replaced")
    told("all has ended")

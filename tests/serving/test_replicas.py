"""Two replicas are one server: what is set at one holds at both, and keys have one limit."""

import time

import httpx2
import pytest
from ray_serving import HOST, serving_on_ray
from registered_versions import other_weights

from serving.keys import add_key

CANARY = "/admin/traffic/mood/canary"
PER_MINUTE = 6000
QUARTER = ["the cat sat on the mat " * 40] * 6
"""Of about 1,500 tokens."""


@pytest.fixture
def keys(tmp_path):
    """Headers of one who may do all, and of one with few tokens; the file of their keys."""
    path = tmp_path / "keys.json"
    admin = add_key(path, "admin", ["predict", "admin"], None)
    limited = add_key(path, "limited", ["predict"], PER_MINUTE)
    return {"X-API-Key": admin}, {"X-API-Key": limited}, path


def ask(url, method, path, headers, body=None):
    """On a connection of its own: the next request may come to the other replica."""
    response = httpx2.request(method, url + path, json=body, headers=headers, timeout=60)
    return response.status_code, response.json() if response.content else None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_one_is_told_all_do(
    copied_registry, small_models, keys, subprocess_environment, tmp_path
):
    admin, limited, key_file = keys
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    assert copied_registry.register(better, "mood") == 2
    copied_registry.client.set_registered_model_alias("mood", "champion", "1")
    arguments = {
        "model": ["models:/mood@champion"],
        "tracking_uri": copied_registry.uri,
        "cache": str(tmp_path / "models"),
        "api_key_file": str(key_file),
    }
    replicas = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 1}}
    with serving_on_ray(arguments, subprocess_environment, tmp_path, **replicas) as serving:
        url = f"http://{HOST}:{serving.port}"

        def running():
            states = serving.states("bertline").items()
            return {name for name, state in states if state == "RUNNING"}

        def versions():
            body = {"model": "mood", "inputs": "a cat"}
            told = [ask(url, "POST", "/v1/classify", admin, body) for _ in range(40)]
            return {answer["version"] for status, answer in told if status == 200}

        def wait_until(is_so, seconds):
            deadline = time.monotonic() + seconds
            while not is_so():
                assert time.monotonic() < deadline
                time.sleep(0.2)

        wait_until(lambda: len(running()) == 2, 60)
        assert versions() == {"1"}
        assert ask(url, "PUT", CANARY, limited, {"model": "models:/mood/2", "share": 1.0})[0] == 403
        status, told = ask(url, "PUT", CANARY, admin, {"model": "models:/mood/2", "share": 1.0})
        assert (status, told["canary"]["version"]) == (200, "2")
        wait_until(lambda: versions() == {"2"}, 10)
        before = running()
        serving.replicas()[0].kill()
        wait_until(lambda: len(running()) == 2 and running() != before, 90)
        wait_until(lambda: versions() == {"2"}, 10)  # the new one has been told by the other
        assert ask(url, "DELETE", CANARY, admin)[0] == 200
        wait_until(lambda: versions() == {"1"}, 10)

        let_in, begin = 0, time.monotonic()
        statuses = []
        while time.monotonic() - begin < 12:
            status, answer = ask(url, "POST", "/v1/features", limited, {"inputs": QUARTER})
            statuses.append(status)
            let_in += sum(each["n_tokens"] for each in answer["results"]) if status == 200 else 0
            time.sleep(0.3)
        allowed = PER_MINUTE * (1 + (time.monotonic() - begin) / 60)
        largest = let_in / statuses.count(200)
        assert allowed - largest <= let_in <= allowed + 1.5 * largest, (let_in, statuses)
        assert set(statuses) == {200, 429}

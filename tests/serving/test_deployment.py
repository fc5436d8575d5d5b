"""The application under Ray Serve: arguments, requests, and operation under faults."""

import http.client
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema
from ray_serving import HOST, REPOSITORY, serving_on_ray
from registered_versions import broken_weights, other_weights
from running import assert_alike

from bert_core.errors import UserError
from serving.client import Client
from serving.deployment import INGRESS_VARIABLES, DeploymentArguments, Server, build
from serving.limits import Limits
from serving.rollout.aliases import VariantSource


def test_everybody_is_let_in_only_if_that_is_said(small_models):
    folder = str(small_models["entities"])
    with pytest.raises(UserError, match="no keys are asked for"):
        build(DeploymentArguments(model=folder))
    assert build(DeploymentArguments(model=folder, insecure=True))
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(model="here", insecure=True))
    registered = {"model": "models:/people@champion", "insecure": True}
    assert build(DeploymentArguments(**registered))
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(**registered, cache=Path("models")))
    with pytest.raises(UserError, match="write models:/name@alias"):
        build(DeploymentArguments(model="models:/people", insecure=True))


def test_several_models_are_divided_by_commas():
    assert DeploymentArguments(model="a=/b,/c").model == ["a=/b", "/c"]
    assert DeploymentArguments(model=["a=/b", "/c"]).model == ["a=/b", "/c"]
    given = DeploymentArguments(model="a=/b,/c", canary="a=/d,0.1,c=/e,1", shadow=["a=/f,.5"])
    assert given.canary == ["a=/d,0.1", "c=/e,1"] and given.shadow == ["a=/f,.5"]
    assert given.variants["canary", "c"] == VariantSource(Path("/e"), 1.0)
    with pytest.raises(UserError, match="write NAME=MODEL,SHARE"):
        _ = DeploymentArguments(model="a=/b", canary="a=/d").variants
    with pytest.raises(UserError, match="whole paths"):
        build(DeploymentArguments(model="a=/b", shadow="a=d,1", insecure=True))


def test_the_files_beside_it_are_of_this_deployment():
    config = yaml.safe_load((REPOSITORY / "infra" / "serve.yaml").read_text())
    ServeDeploySchema.model_validate(config)
    assert len({each["route_prefix"] for each in config["applications"]}) == 2
    for application in config["applications"]:
        assert application["import_path"] == "serving.deployment:build"
        assert build(DeploymentArguments.model_validate(application["args"]))
        (deployment,) = application["deployments"]
        assert deployment["name"] == Server.name
        scaling = deployment["autoscaling_config"]
        assert scaling["target_ongoing_requests"] < deployment["max_ongoing_requests"]
        # One that goes has 30 s in which it is reachable, then its requests have theirs.
        limits = Limits.model_validate(application["args"].get("limits", {}))
        assert deployment["graceful_shutdown_timeout_s"] > 30 + limits.deadline_seconds
    lines = (REPOSITORY / "infra" / "ray-serve.env").read_text().splitlines()
    variables = dict(line.split("=") for line in lines if line and not line.startswith("#"))
    assert INGRESS_VARIABLES.items() <= variables.items()


@pytest.mark.ray
@pytest.mark.slow
def test_it_answers_as_under_uvicorn(
    server, small_models, registry, subprocess_environment, tmp_path
):
    models = small_models | {"entities": "models:/people@champion"}
    arguments = {
        "model": [f"{name}={model}" for name, model in models.items()],
        "tracking_uri": registry.uri,
        "cache": str(tmp_path / "models"),
        "cors_origins": "https://a.example",
        "allowed_hosts": "b.example,c.example",
        "insecure": True,
    }
    with serving_on_ray(arguments, subprocess_environment, tmp_path) as serving:
        for route, body in (
            ("/v1/ner", {"inputs": ["the cat sat", ""]}),
            ("/v1/classify", {"model": "sentiment", "inputs": "a cat"}),
            ("/embed", {"inputs": "a cat"}),
            ("/v1/ner", {"inputs": 3}),
            ("/v1/nothing", {}),
        ):
            status, content, headers = serving.ask(route, body)
            wanted_status, wanted = server.ask(route, body)
            assert status == wanted_status
            if status == 200 and route == "/v1/ner":  # there it is a folder
                assert content.pop("version") == "1" != wanted.pop("version")
            assert_alike(content, wanted)  # a replica has threads of its own number
            assert headers["X-Request-Id"]
        for host, wanted_status in (("c.example", 200), ("d.example", 421)):
            assert serving.ask("/info", headers={"Host": host})[0] == wanted_status
        _, info = serving.ask("/info")[:2]
        assert info["models"]["entities"]["registered"]["version"] == 1
        below = serving.process.children(recursive=True)
        assert any(each.name() == "haproxy" for each in below)


SECONDS = 120.0
CLIENTS = 32
MOVES = 10


class Asked:
    """What clients were told: answers by when they came, and what failed."""

    def __init__(self):
        self.answers, self.failures = [], []
        self.ended = threading.Event()

    def go_on(self, ask):
        """Asks until this has ended; `ask` gives the version that answered."""
        while not self.ended.is_set():
            began = time.monotonic()
            try:
                version = ask()
            except Exception as error:  # noqa: BLE001 - it is what is counted
                self.failures.append(error)
                time.sleep(0.05)
            else:
                self.answers.append((began, time.monotonic(), version))


class RefusedError(Exception):
    """An answer that is none, as a client without retries sees it."""


def raw(port):
    """Asks without retries."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        body = json.dumps({"model": "mood", "inputs": "a cat"})
        connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            is_own = response.getheader("X-Request-Id") is not None
            # Ray Serve's HAProxy writes 500 for its own 502, 503 and 504.
            raise RefusedError(response.status if is_own or response.status != 500 else 503)
        return json.loads(content)["version"]
    finally:
        connection.close()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_versions_change_and_replicas_die_and_clients_are_answered(
    copied_registry, small_models, subprocess_environment, tmp_path
):
    folder = small_models["sentiment"]
    better = other_weights(folder, tmp_path / "better", 2.0)
    assert copied_registry.register(better, "mood") == 2
    broken = broken_weights(folder, tmp_path / "broken")
    assert copied_registry.register(broken, "mood") == 3
    arguments = {
        "model": ["models:/mood@champion"],
        "tracking_uri": copied_registry.uri,
        "cache": str(tmp_path / "models"),
        "poll_seconds": 1.0,
        "insecure": True,
    }
    move = copied_registry.client.set_registered_model_alias
    with serving_on_ray(
        arguments,
        subprocess_environment,
        tmp_path,
        num_replicas=2,
        ray_actor_options={"num_cpus": 1},
    ) as serving:
        url = f"http://{HOST}:{serving.port}"
        ours, without_retries = Asked(), Asked()

        def ask_with_our_client():
            with Client(url) as client:
                ours.go_on(lambda: client.classify("a cat", model="mood").version)

        threads = [threading.Thread(target=ask_with_our_client) for _ in range(CLIENTS - 4)]
        threads += [
            threading.Thread(target=without_retries.go_on, args=(lambda: raw(serving.port),))
            for _ in range(4)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        moved = []  # when it began and had ended, and to which version
        for number in range(MOVES):
            version = "2" if number % 2 == 0 else "1"
            if number == 4:
                move("mood", "champion", "3")  # the broken one
                time.sleep(SECONDS / 30)
            moving = time.monotonic()
            move("mood", "champion", version)
            moved.append((moving, time.monotonic(), version))
            if number in (2, 6):
                time.sleep(1)
                serving.replicas()[0].kill()
            until = begin + SECONDS * (number + 1) / MOVES
            time.sleep(max(0.0, until - time.monotonic()))
        for asked in (ours, without_retries):
            asked.ended.set()
        for thread in threads:
            thread.join()
        info = serving.ask("/info")[1]["models"]["mood"]
    told = Counter(
        type(failure).__name__ + str(failure)[:40] for failure in without_retries.failures
    )
    print(f"{len(ours.answers)} answers, {len(without_retries.answers)} without retries; {told}")
    answers = [*ours.answers, *without_retries.answers]
    last_old = [
        max(
            (
                began - at
                for began, ended, gave in answers
                # The next version may answer as soon as the move to it has begun.
                if at < began and ended < next_move and gave != version
            ),
            default=0.0,
        )
        for (_, at, version), next_move in zip(
            moved, [*(each[0] for each in moved[1:]), float("inf")], strict=True
        )
    ]
    print("an old version was last asked, s after the move:", *(f"{each:.1f}" for each in last_old))
    assert Counter(map(repr, ours.failures)) == {}
    for failure in without_retries.failures:
        is_reset = isinstance(failure, (ConnectionError, http.client.HTTPException))
        assert is_reset or failure.args[0] in (502, 503), told
    assert max(last_old) < 5
    assert info["version"] == moved[-1][-1] and info["refused"] is None

"""Two replicas in operation: versions change, replicas are killed, and nobody notices."""

import http.client
import json
import threading
import time
from collections import Counter

import pytest
from ray_serving import HOST, serving_on_ray
from registered_versions import broken_weights, other_weights

from serving.client import Client

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
        for each in threads:
            each.start()
        moved = []
        for number in range(MOVES):
            version = "2" if number % 2 == 0 else "1"
            if number == 4:
                move("mood", "champion", "3")  # the broken one
                time.sleep(SECONDS / 30)
            move("mood", "champion", version)
            moved.append((time.monotonic(), version))
            if number in (2, 6):
                time.sleep(1)
                serving.replicas()[0].kill()
            until = begin + SECONDS * (number + 1) / MOVES
            time.sleep(max(0.0, until - time.monotonic()))
        for asked in (ours, without_retries):
            asked.ended.set()
        for each in threads:
            each.join()
        info = serving.ask("/info")[1]["models"]["mood"]
    told = Counter(type(each).__name__ + str(each)[:40] for each in without_retries.failures)
    print(f"{len(ours.answers)} answers, {len(without_retries.answers)} without retries; {told}")
    answers = [*ours.answers, *without_retries.answers]
    last_old = [
        max(
            (began - at for began, _, gave in answers if at < began < next_at and gave != version),
            default=0.0,
        )
        for (at, version), (next_at, _) in zip(moved, [*moved[1:], (float("inf"), "")], strict=True)
    ]
    print("an old version was last asked, s after the move:", *(f"{each:.1f}" for each in last_old))
    assert Counter(map(repr, ours.failures)) == {}
    for each in without_retries.failures:
        is_reset = isinstance(each, (ConnectionError, http.client.HTTPException))
        assert is_reset or each.args[0] in (502, 503), told
    assert max(last_old) < 5
    assert info["version"] == moved[-1][1] and info["refused"] is None

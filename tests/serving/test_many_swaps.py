"""Versions change many times under a server, and nothing of those before stays behind."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from registered_versions import other_encoder, other_weights

SERVER = Path(__file__).with_name("counted_server.py")
SWAPS = 15
SECONDS = 30.0


class CountedServer:
    """The server of `counted_server.py`."""

    def __init__(self, arguments, environment):
        self.process = subprocess.Popen(
            [sys.executable, SERVER, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        for line in self.process.stdout:
            if found := re.match(r"ready at (\S+),", line):
                self.address = found[1]
                break

    def version(self):
        body = json.dumps({"inputs": "a cat"}).encode()
        request = Request(f"{self.address}/v1/classify", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=SECONDS) as response:
            return json.load(response)["version"]

    def versions_counted(self):
        with urlopen(f"{self.address}/metrics", timeout=SECONDS) as response:
            text = response.read().decode()
        return set(re.findall(r'bertline_version_requests_total.*version="(\d)"', text))

    def what_there_is(self):
        """Asks without a request for the models: whatever was asked last is what it may keep."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_stays_of_versions_before(
    copied_registry, small_models, subprocess_environment, tmp_path
):
    folder = other_encoder(small_models["sentiment"], tmp_path / "second")
    copied_registry.register(folder, "mood")
    copied_registry.register(other_weights(folder, tmp_path / "third", 2.0), "mood")  # one encoder
    arguments = ["--model", "models:/mood@champion", "--tracking_uri", copied_registry.uri]
    arguments += ["--cache", str(tmp_path / "models"), "--port", "0", "--threads", "1"]
    client = copied_registry.client
    server = CountedServer([*arguments, "--poll_seconds", "0.1", "--no-log_requests"],
                           subprocess_environment)  # fmt: skip
    try:
        after = []
        for number in range(1, SWAPS + 1):
            version = str(number % 3 + 1)
            client.set_registered_model_alias("mood", "champion", version)
            end = time.monotonic() + SECONDS
            while server.version() != version:
                assert time.monotonic() < end
                time.sleep(0.02)
            if number in (3, SWAPS):
                after.append(settled(server))
                assert server.versions_counted() == {version}
    finally:
        server.process.terminate()
        server.process.communicate(timeout=SECONDS)
    assert (after[0]["models"], after[0]["weights"], after[0]["batchers"]) == (1, 1, 1)
    assert after[1] == after[0]


def settled(server):
    """What there is when the version before has been retired, or after a while anyway."""
    end = time.monotonic() + 5
    while server.what_there_is()["models"] > 1 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)  # its thread ends after it
    return server.what_there_is()

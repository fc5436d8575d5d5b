"""`python -m serving` as a user starts it: it says where it is, answers, and stops when told."""

import json
import re
import signal
import subprocess
import sys
import urllib.request


def test_models_are_served_until_the_server_is_told_to_stop(small_models, subprocess_environment):
    command = [sys.executable, "-m", "serving", "--port", "0", "--threads", "1"]
    for name in ("entities", "answers"):
        command += ["--model", str(small_models[name])]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=subprocess_environment,
    )  # fmt: skip
    try:
        lines = [server.stdout.readline() for _ in range(3)]
        assert lines[0].startswith("entities: ner, ") and lines[1].startswith("answers: squad, ")
        address = re.search(r"ready at (http://127\.0\.0\.1:\d+), ", lines[2]).group(1)
        request = urllib.request.Request(
            f"{address}/v1/ner",
            json.dumps({"inputs": "the cat sat"}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response)["model"] == "entities"
    finally:
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
    assert server.returncode in (0, -signal.SIGTERM)
    (line,) = errors.splitlines()
    assert json.loads(line)["path"] == "/v1/ner" and "cat" not in line


def test_a_folder_that_is_no_model_is_one_line(tmp_path, subprocess_environment):
    found = subprocess.run(
        [sys.executable, "-m", "serving", "--model", str(tmp_path)],
        capture_output=True,
        text=True,
        env=subprocess_environment,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.startswith("error: ") and found.stderr.count("\n") == 1


def test_an_address_that_is_taken_is_one_line(small_models, server, subprocess_environment):
    command = [sys.executable, "-m", "serving", "--model", str(small_models["entities"])]
    found = subprocess.run(
        [*command, "--port", str(server.port)],
        capture_output=True,
        text=True,
        env=subprocess_environment,
        check=False,
    )
    assert found.returncode == 2 and not found.stdout
    assert found.stderr.startswith("error: cannot listen") and found.stderr.count("\n") == 1

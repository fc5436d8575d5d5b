"""What the OpenAPI document says is what happens: requests made up from it, thousands of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import start

from serving.engine import Engine
from serving.instrumentation import LOG
from serving.models import close_models, load_models

MODELS = ("encoder", "sentiment", "entities", "answers")
PHASES = ("examples", "coverage", "fuzzing")


@pytest.fixture(scope="module")
def address(small_models):
    """A server with one model of each kind, so that none needs to be named."""
    models = load_models({name: small_models[name] for name in MODELS})
    running, stop = start(Engine(models), small_models)
    yield f"http://{running.host}:{running.port}"
    stop()
    close_models(list(models.values()))


def made_up(address, folder, *options):
    """Runs schemathesis; how many cases it made, and what it found."""
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{address}/openapi.json"),
        *("--checks", "all", "--phases", ",".join(PHASES), "--continue-on-failure"),
        # Whether a request is refused depends on the models: a document cannot say it all.
        *("--exclude-checks", "positive_data_acceptance"),
        *("--seed", "1", "--generation-database", ":memory:", *options),
    ]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    said = re.search(r"([\d,]+) generated", found.stdout)
    assert found.returncode == 0 and said, found.stdout[-8000:] + found.stderr
    return int(said.group(1).replace(",", ""))


@pytest.fixture
def no_mistakes(caplog):
    """Fails where the server logged a mistake of its own, however it was told to the client."""
    yield
    mistakes = [each.message for each in caplog.get_records("call") if each.name == LOG.name]
    assert not [each for each in mistakes if '"kind"' in each]


@pytest.mark.usefixtures("no_mistakes")
def test_a_few_hundred_requests_end_as_the_document_says(address, tmp_path):
    assert made_up(address, tmp_path, "--max-examples", "4") > 300


@pytest.mark.slow
@pytest.mark.usefixtures("no_mistakes")
@pytest.mark.timeout(1800)
def test_ten_thousand_requests_end_as_the_document_says(address, tmp_path):
    assert made_up(address, tmp_path, "--max-examples", "500") >= 10_000

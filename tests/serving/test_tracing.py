"""When a request has spans, and that it has none without a collector."""

import subprocess
import sys
import time

import pytest

from bert_core.errors import UserError
from serving.batching import Batch
from serving.deployment import DeploymentArguments
from serving.settings import parse_arguments
from serving.tracing import computing, current_trace, span, start_tracing

OFF = """
import sys
from serving.__main__ import start_tracing
assert start_tracing(None, 1.0) is None
# FastAPI has its interface; nothing makes spans or sends them.
print([each for each in sys.modules if each.startswith(("opentelemetry.sdk", "opentelemetry.exp"))])
"""


class Recorded:
    """A trace that keeps what it is told."""

    def __init__(self):
        self.spans, self.numbers = [], {}

    def record(self, name, begin, end, **numbers):
        self.spans.append((name, begin, end, numbers))

    def note(self, **numbers):
        self.numbers |= numbers

    def end(self, request, scope, status, kind):
        pass


@pytest.fixture
def trace():
    """That of the request that is being worked on."""
    recorded = Recorded()
    token = current_trace.set(recorded)
    yield recorded
    current_trace.reset(token)


def test_it_is_off_by_default(subprocess_environment):
    assert parse_arguments(["--model", "a"]).otlp_endpoint is None
    assert DeploymentArguments(model="a").otlp_endpoint is None
    found = subprocess.run(
        [sys.executable, "-c", OFF],
        capture_output=True, text=True, env=subprocess_environment, check=True,
    )  # fmt: skip
    assert found.stdout == "[]\n"
    assert span("encode") is span("decode") is computing([])  # which does nothing


def test_without_its_packages_the_remedy_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "serving.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[tracing\]'") as told:
        start_tracing("http://collector:4318", 1.0)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("collector:4318", "is no base"),
        ("grpc://collector:4317", "is no base"),
        ("http://collector:4318/v1/traces", "without /v1/traces"),
        ("http://collector:4318/?a=b", "is no base"),
        ("http://me:hidden@collector:4318", "a password has no place in it"),
    ],
)
def test_an_endpoint_is_a_base_address(endpoint, said):
    with pytest.raises(UserError, match=said) as told:
        parse_arguments(["--model", "a", "--otlp_endpoint", endpoint])
    assert "hidden" not in str(told.value) and "--otlp_endpoint" in str(told.value)


@pytest.mark.parametrize("share", ["-0.1", "1.1", "nan"])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(UserError, match="--trace_share"):
        parse_arguments(["--model", "a", "--trace_share", share])


def test_a_span_is_there_even_where_the_block_fails(trace):
    with pytest.raises(KeyError), span("encode"):
        raise KeyError
    ((name, begin, end, numbers),) = trace.spans
    assert name == "encode" and begin <= end <= time.monotonic() and not numbers


def test_what_waits_ends_with_the_first_micro_batch(trace):
    begin = time.monotonic()
    with computing([Batch(9, 16, 3, begin + 2.0, 0.5), Batch(5, 8, 1, begin + 4.0, 0.25)]):
        pass
    wait, first, second = trace.spans
    assert wait[0] == "wait" and wait[2] == begin + 2.0
    assert first == ("compute", begin + 2.0, begin + 2.5, {"batch_tokens": 9, "batch_requests": 3})
    assert second[1:3] == (begin + 4.0, begin + 4.25)
    assert trace.numbers == {"batches": 2}


def test_many_micro_batches_are_counted(trace):
    with computing([Batch(1, 1, 1, 0.0, 0.0)] * 1000):
        pass
    assert len(trace.spans) == 33 and trace.numbers == {"batches": 1000}

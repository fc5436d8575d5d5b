"""Spans of requests, and how they are sent."""

import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from forked_programs import ForkedProgram
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from ray_serving import serving_on_ray
from running import ask_at, serving, wait_until

from bert_core.errors import UserError
from serving.app import start_tracing
from serving.batching import Batch, OverloadedError
from serving.deployment import DeploymentArguments
from serving.keys import KeyRecord, Keys, hash_of
from serving.limits import Limits
from serving.request_context import RequestContext, computing, current_request, span
from serving.settings import parse_arguments
from serving.telemetry import otlp


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
    token = current_request.set(RequestContext("1", trace=recorded))
    yield recorded
    current_request.reset(token)


def test_it_is_off_by_default():
    assert parse_arguments(["--model", "a"]).otlp_endpoint is None
    assert DeploymentArguments(model="a").otlp_endpoint is None
    assert start_tracing(None, 1.0) is None
    assert span("encode") is span("decode") is computing([])  # which does nothing


def test_without_its_packages_the_remedy_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "serving.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[tracing\]'") as told:
        start_tracing("http://collector:4318", 1.0)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("otlp_endpoint", "collector:4318", "is no base"),
        ("otlp_endpoint", "grpc://collector:4317", "is no base"),
        ("otlp_endpoint", "http://collector:4318/v1/traces", "without /v1/traces"),
        ("otlp_endpoint", "http://collector:4318/?a=b", "is no base"),
        ("otlp_endpoint", "http://me:hidden@collector:4318", "a password has no place in it"),
        *(("trace_share", share, "") for share in ("-0.1", "1.1", "nan")),
    ],
)
def test_an_endpoint_is_a_base_address_and_a_share_between_0_and_1(option, value, said):
    with pytest.raises(UserError, match=f"{said}.*--{option}") as told:
        parse_arguments(["--model", "a", f"--{option}", value])
    assert "hidden" not in str(told.value)


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
    trace.spans.clear()
    with computing([Batch(1, 1, 1, 0.0, 0.0)] * 1000):  # many are only counted
        pass
    assert len(trace.spans) == 33 and trace.numbers == {"batches": 1000}


SECRET = "secret cat"
KEY = "bertline-hidden"
SERVER, INTERNAL, ERROR = 2, 1, 2  # span kinds and a status as the protocol has them
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def traced(folders, endpoint, share=1.0, limits=None):
    """A server that sends its spans; at the end of the block they have come."""
    keys = Keys([KeyRecord(name="team", sha256=hash_of(KEY), scopes=("predict", "admin"))])
    tracing = start_tracing(endpoint, share, "replica-1")
    with serving(folders, limits, keys=keys, tracing=tracing) as running:
        yield running


def ask(server, path, body=None, method=None, **headers):
    given = {"Authorization": f"Bearer {KEY}"} | headers
    return server.ask_whole(path, body, method=method, headers=given)


@pytest.fixture
def collector():
    """A collector, with its base address."""
    with collecting() as (made, made.address):
        yield made


@pytest.fixture
def sentiment(small_models):
    return {"sentiment": small_models["sentiment"]}


def test_a_request_is_a_tree_of_spans(collector, sentiment):
    with traced(sentiment, collector.address + "/") as server:
        body = {"inputs": [SECRET, f"{SECRET} sat"]}
        status, answer, headers = ask(server, "/v1/classify", body, **{"X-Request-Id": "mine"})
        assert status == 200
        ask(server, "/v1/tokenize", {"inputs": SECRET})
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.resource["service.name"] == "bertline"
    assert collector.resource["service.instance.id"] == "replica-1"
    assert collector.resource["service.version"]
    root, *below = [
        each for each in collector.spans if each.trace_id == collector.spans[0].trace_id
    ]
    assert root.name == "POST /v1/classify" and root.kind == SERVER and not root.parent_span_id
    tokens = sum(result["n_tokens"] for result in answer["results"])
    assert attributes(root) == {
        "http.request.method": "POST",
        "http.route": "/v1/classify",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "bertline.request_id": "mine",
        "bertline.model": "sentiment",
        "bertline.version": headers["X-Model-Version"],
        "bertline.tokens": tokens,
        "bertline.batches": 1,
        "bertline.key_name": "team",
    }  # fmt: skip
    assert [each.name for each in below] == ["encode", "wait", "compute", "decode"]
    assert all(each.parent_span_id == root.span_id and each.kind == INTERNAL for each in below)
    moments = [(each.start_time_unix_nano, each.end_time_unix_nano) for each in below]
    flat = [root.start_time_unix_nano, *sum(moments, ()), root.end_time_unix_nano]
    assert flat == sorted(flat) and abs(flat[-1] / 1e9 - time.time()) < 30
    assert attributes(below[2]) == {"bertline.batch_tokens": tokens, "bertline.batch_requests": 1}
    assert [each.name for each in collector.spans[5:]] == ["POST /v1/tokenize", "encode"]


def test_no_word_of_a_request_is_sent(collector, sentiment, monkeypatch):
    with traced(sentiment, collector.address) as server:
        state = {"tracestate": "vendor=hidden-state", "User-Agent": "hidden-agent"}
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        ask(server, "/v1/classify", {"inputs": SECRET, "model": "sentiment"}, **state, **parent)
        ask(server, "/v1/classify", {"inputs": SECRET, "model": SECRET}, **state)
        ask(server, f"/v1/{SECRET.replace(' ', '%20')}?q=hidden", {"inputs": SECRET}, **state)
        ask(server, "/v1/classify", {"inputs": SECRET}, method="PROPFIND", **state)
        server.ask("/v1/classify", {"inputs": SECRET}, headers={"X-API-Key": "hidden"})

        def fail(*_):
            raise RuntimeError(SECRET)

        monkeypatch.setattr(server.engine.traffic, "find", fail)
        assert ask(server, "/v1/classify", {"inputs": SECRET})[0] == 500
        monkeypatch.undo()
    roots = [each for each in collector.spans if each.kind == SERVER]
    statuses = [attributes(root)["http.response.status_code"] for root in roots]
    assert statuses == [200, 404, 404, 405, 401, 500]
    assert [root.name for root in roots[2:5]] == ["POST", "HTTP /v1/classify", "POST"]
    assert attributes(roots[3])["http.request.method"] == "_OTHER"
    assert [root.status.code for root in roots] == [0, 0, 0, 0, 0, ERROR]
    assert attributes(roots[5])["error.type"] == "RuntimeError" and not roots[5].events
    assert not roots[5].status.message
    assert not re.search(b"secret|hidden|cat|sat", collector.raw, re.IGNORECASE), collector.raw


def test_a_clients_trace_is_continued_or_left(collector, sentiment):
    body = {"inputs": "a cat"}
    with traced(sentiment, collector.address, share=0.0) as server:
        ask(server, "/v1/classify", body)
        ask(server, "/v1/classify", body, traceparent=f"00-{TRACE}-{PARENT}-00")
        ask(server, "/v1/classify", body, traceparent="nonsense")
        ask(server, "/v1/classify", body, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert len(collector.spans) == 5
    root, *below = collector.spans
    assert {each.trace_id.hex() for each in collector.spans} == {TRACE}
    assert root.parent_span_id.hex() == PARENT
    assert {each.parent_span_id for each in below} == {root.span_id}
    with traced(sentiment, collector.address) as server:
        ask(server, "/v1/classify", body, traceparent=f"00-{TRACE}-{PARENT}-00")
    assert len(collector.spans) == 5


def test_who_watches_and_who_is_turned_away_is_not_traced(collector, sentiment, monkeypatch):
    with traced(sentiment, collector.address) as server:
        for path in ("/health", "/ready", "/metrics"):
            assert ask(server, path)[0] == 200

        def refuse():
            raise OverloadedError(1.0)

        monkeypatch.setattr(server.engine, "check_room", refuse)
        assert ask(server, "/v1/classify", {"inputs": "a cat"})[0] == 429
        monkeypatch.undo()
        ask(server, "/info")
    assert [each.name for each in collector.spans] == ["GET /info"]


def test_long_texts_and_many_micro_batches_have_their_spans(collector, small_models):
    limits = Limits(max_request_tokens=1 << 20)
    folders = {"encoder": small_models["encoder"]}
    inputs = ["the cat sat on the mat " * 5] * 200  # encoded and decoded on another thread
    with traced(folders, collector.address, limits=limits) as server:
        answers = []
        batcher = server.engine.models["encoder"].batcher
        count_tokens, all_wait = batcher.watch, threading.Event()

        def hold(batch):
            count_tokens(batch)
            all_wait.wait(60)

        batcher.watch = hold

        def ask_one():
            answers.append(ask(server, "/v1/features", {"inputs": inputs})[0])

        threads = [threading.Thread(target=ask_one) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: batcher.waiting_tokens > 2 * 200 * 30)
        all_wait.set()
        for thread in threads:
            thread.join()
    assert answers == [200] * 3
    roots = [each for each in collector.spans if each.kind == SERVER]
    for root in roots:
        below = [each for each in collector.spans if each.parent_span_id == root.span_id]
        names = [each.name for each in below]
        count = attributes(root)["bertline.batches"]
        assert count > 4 and names == ["encode", "wait", *["compute"] * min(count, 32), "decode"]
        assert {each.trace_id for each in below} == {root.trace_id}
    shared = [attributes(each).get("bertline.batch_requests", 0) for each in collector.spans]
    assert max(shared) > 1


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["hangs", "away", "refuses"])
def test_a_collector_that_fails_holds_nobody_up(
    collector, dead_address, sentiment, how, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(otlp, "_SEND_SECONDS", 0.05)
    monkeypatch.setattr(otlp, "_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(otlp, "_MOST_SPANS", 256)
    if how == "hangs":
        collector.hang.set()
    collector.status = 404
    with traced(sentiment, dead_address if how == "away" else collector.address) as server:
        took = []
        for _ in range(150):  # 750 spans
            begin = time.monotonic()
            assert ask(server, "/v1/classify", {"inputs": "a cat"})[0] == 200
            took.append(time.monotonic() - begin)
        time.sleep(0.5)
        begin = time.monotonic()
    assert time.monotonic() - begin < 3.0
    assert sorted(took)[len(took) // 2] < 0.15  # a request that waited would take 0.3 s
    others = [record for record in caplog.records if record.name != "serving.requests"]
    (warning,) = [other for other in others if other.levelno >= logging.WARNING]
    wanted = "HTTP 404" if how == "refuses" else "no answer"
    assert f"takes no spans ({wanted})" in warning.getMessage()
    assert not [other for other in others if other.name.startswith("opentelemetry")]


def test_it_says_when_the_collector_is_back(collector, sentiment, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="serving.telemetry.otlp")
    monkeypatch.setattr(otlp, "_SEND_SECONDS", 0.05)
    with traced(sentiment, collector.address) as server:
        for collector.status in (400, 200, 400):
            said = len(caplog.records)
            for _ in range(3):
                ask(server, "/v1/classify", {"inputs": "a cat"})
                time.sleep(0.2)
            assert (
                len([e for e in caplog.records[said:] if e.name == "serving.telemetry.otlp"]) == 1
            )


def test_a_server_that_is_told_to_stop_sends_what_is_left(
    collector, sentiment, subprocess_environment
):
    command = ["serving", "--port", "0", "--threads", "1"]
    command += ["--model", str(sentiment["sentiment"]), "--otlp_endpoint", collector.address]
    environment = subprocess_environment | {"OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=bert"}
    server = ForkedProgram(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        while "ready at" not in (line := server.stdout.readline()):
            assert line
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1))
        assert ask_at("127.0.0.1", port, "/v1/classify", {"inputs": "a cat"})[0] == 200
    finally:
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
    assert [each.name for each in collector.spans][0] == "POST /v1/classify"
    assert collector.resource["service.instance.id"].endswith(f":{server.pid}")
    assert collector.headers[0]["x-tenant"] == "bert"
    assert json.loads(errors)["status"] == 200, "one line, of the request"


@pytest.mark.ray
@pytest.mark.slow
def test_a_replica_sends_its_spans(collector, sentiment, subprocess_environment, tmp_path):
    arguments = {"model": str(sentiment["sentiment"]), "insecure": True}
    arguments["otlp_endpoint"] = collector.address
    with serving_on_ray(arguments, subprocess_environment, tmp_path) as serving:
        status, _, headers = serving.ask("/v1/classify", {"inputs": "a cat"})
        assert status == 200
    root = next(each for each in collector.spans if each.kind == SERVER)
    assert attributes(root)["bertline.request_id"] == headers["X-Request-Id"]
    assert re.fullmatch(r"\w+", collector.resource["service.instance.id"]), "no host:process"


class Collector:
    """What has come: the bodies, by the paths they came to."""

    def __init__(self):
        self.bodies, self.paths, self.headers = [], [], []
        self.status = 200
        self.hang = threading.Event()
        self.released = threading.Event()

    @property
    def raw(self):
        """Every byte that came."""
        return b"".join(self.bodies)

    @property
    def spans(self):
        """All spans, in the order of their beginning."""
        found = [
            span
            for resource in self._resources
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    @property
    def resource(self):
        """What all spans come from."""
        return attributes(self._resources[0].resource)

    @property
    def _resources(self):
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [each for request in requests for each in request.resource_spans]


def attributes(item):
    """Those of a span or a resource, by name."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in item.attributes
    }


@contextmanager
def collecting():
    """A collector, and its base address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):  # noqa: N802 - http.server's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            collector.headers.append(dict(self.headers))
            if collector.hang.is_set():
                collector.released.wait(30)
            else:
                collector.bodies.append(body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{listening.server_port}"
    finally:
        collector.released.set()
        listening.shutdown()
        thread.join()
        listening.server_close()

"""Retries, replies and errors of one request."""

import pickle
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
from scripted_server import CLOSE, GARBAGE, HALF, RESET, SILENCE, scripted

from serving.client import (
    AnswerError,
    ClientError,
    NoAnswerError,
    RefusalError,
    UnreachableError,
)
from serving.client.exchange import (
    Attempts,
    Failure,
    Reply,
    failure_of,
    info_of,
    is_healthy,
    limits_of,
    refusal_of,
    retry_after,
)
from serving.limits import Limits
from serving.schemas import Problem


@pytest.mark.parametrize(
    "script", [[(429, {"Retry-After": "1"}), RESET, CLOSE], [HALF, 503, 502, 504], [500]]
)
def test_what_fails_for_a_while_is_asked_again(open_client, script):
    with scripted(*script) as server:
        found = open_client(server.address, retry_seconds=20).classify("a cat")
    assert found.label == "a cat"
    times = [when for when, _ in server.asked]
    assert len(times) == len(script) + 1
    assert script[0] in (HALF, 500) or times[1] - times[0] >= 1
    assert {body for _, body in server.asked} == {server.asked[0][1]}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 422, 500, 501, 307])
def test_no_other_refusal_is_asked_again(open_client, status):
    with (
        scripted((status, {"X-Request-Id": "1"}), 200) as server,
        pytest.raises(RefusalError) as told,
    ):
        open_client(server.address).classify("a")
    assert told.value.status == status and told.value.attempts == 1
    assert len(server.asked) == 1


def test_what_speaks_no_http_is_not_asked_again(open_client):
    with scripted(GARBAGE, 200) as server, pytest.raises(UnreachableError, match="tried once"):
        open_client(server.address).classify("a")
    with scripted() as server:
        encrypted = server.address.replace("http", "https")
        with pytest.raises(UnreachableError, match="tried once"):
            open_client(encrypted).classify("a")


def test_who_is_silent_is_waited_for_as_long_as_is_said(open_client):
    with scripted(SILENCE, 200) as server:
        client = open_client(server.address, timeout_seconds=0.3)
        begin = time.monotonic()
        with pytest.raises(NoAnswerError) as told:
            client.classify("a")
        assert 0.3 <= time.monotonic() - begin < 10
    assert told.value.attempts == len(server.asked) == 1


def test_where_nobody_listens_is_said_with_how_long_it_was_tried(open_client, dead_address):
    client = open_client(dead_address, retry_seconds=0.6)
    begin = time.monotonic()
    with pytest.raises(UnreachableError) as told:
        client.classify("a")
    seconds = time.monotonic() - begin
    assert 0.3 < seconds < 5
    assert told.value.attempts > 2 and told.value.seconds < 5
    assert dead_address in str(told.value) and "connection refused, tried" in str(told.value)


@pytest.mark.parametrize(
    ("refusal", "retry_seconds", "most_seconds"),
    [((429, {"Retry-After": "30"}), 2, 1.9), (503, 0.7, 5), (502, 0, 5)],
)
def test_the_last_refusal_is_told_when_the_time_is_over(
    open_client, refusal, retry_seconds, most_seconds
):
    with scripted(*[refusal] * 50) as server:
        client = open_client(server.address, retry_seconds=retry_seconds)
        begin = time.monotonic()
        with pytest.raises(RefusalError) as told:
            client.classify("a")
        assert time.monotonic() - begin < most_seconds
    assert told.value.attempts == len(server.asked)
    assert (len(server.asked) > 2) == (refusal == 503)


def test_a_further_attempt_takes_no_longer_than_there_is_time_for(open_client):
    with scripted(503, SILENCE) as server:
        client = open_client(server.address, retry_seconds=0.7)
        begin = time.monotonic()
        with pytest.raises(RefusalError, match="^503: .*; tried 2 times"):
            client.classify("a")
        assert time.monotonic() - begin < 10, "not the 60 s of a timeout"
    with scripted(503, SILENCE) as server, pytest.raises(NoAnswerError, match="tried 2 times"):
        open_client(server.address, timeout_seconds=0.3).classify("a")


@pytest.mark.parametrize("reply", [Reply(503, {}, b""), Failure("reset", retryable=True)])
def test_pauses_double_up_to_a_bound_and_end_with_the_time(reply):
    now = 0.0
    attempts = Attempts("http://a", 60, 30, clock=lambda: now, draw=lambda _, most: most)
    pauses = []
    while True:
        try:
            step = attempts.after(reply)
        except UnreachableError:
            break
        if isinstance(step, Reply):
            break
        pauses.append(step)
        now += step
    assert pauses[:7] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert max(pauses) <= 5 and 29.8 < now < 30


def test_jitter_is_full_and_comes_after_what_the_server_wants():
    drawn = []
    attempts = Attempts("", 60, 30, draw=lambda least, most: drawn.append((least, most)) or least)
    assert attempts.after(Reply(429, {"Retry-After": "3"}, b"")) == 3
    assert attempts.after(Reply(503, {}, b"")) == 0
    assert drawn == [(0, pytest.approx(0.1)), (0, pytest.approx(0.2))]


def test_retry_after_is_a_number_or_a_date():
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert 18 < retry_after(httpx2.Headers({"retry-after": date})) <= 20
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert [retry_after({"Retry-After": each}) for each in ("7", "-7", "soon", "")] == [7, 0, 0, 0]


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        (socket.gaierror(-2, "Name or service not known"), False),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), False),
        (ssl.SSLEOFError(8, "EOF occurred"), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
    ],
)
def test_what_will_be_no_other_in_a_minute_is_not_asked_again(cause, again):
    error = httpx2.ConnectError("All connection attempts failed")
    error.__cause__ = ExceptionGroup("all", [cause])
    failure = failure_of(error)
    assert failure.retryable == again and failure.reason.lower() == cause.strerror.lower()


def test_a_refusal_has_the_fields_of_its_problem():
    body = b'{"title":"T","status":422,"detail":"d","field":"f","remedy":"r","more":1}'
    told = refusal_of(Reply(422, {"X-Request-Id": "abc"}, body, attempts=3, seconds=1.0))
    fields = (told.title, told.status, told.detail, told.field, told.remedy)
    assert fields == ("T", 422, "d", "f", "r")
    assert (told.request_id, told.attempts, told.seconds) == ("abc", 3, 1.0)
    for status, title in ((502, "Bad Gateway"), (599, "Refused")):  # without a problem
        told = refusal_of(Reply(status, {}, b"<html>nginx</html>"))
        assert (told.status, told.title) == (status, title) and "nginx" not in str(told)


def test_a_server_that_does_not_show_its_limits_has_the_usual_ones_and_later_ones_more():
    assert limits_of(Reply(404, {}, b""), "") == Limits()
    with pytest.raises(RefusalError):
        info_of(Reply(404, {}, b""), "")
    with pytest.raises(AnswerError, match="version: Field required"):
        info_of(Reply(200, {}, b"{}"), "http://a")
    body = b'{"version":"9","models":{},"limits":{"max_items":3,"max_of_tomorrow":1}}'
    assert limits_of(Reply(200, {}, body), "").max_items == 3


def test_whether_a_server_is_healthy_is_no_error(open_client, dead_address):
    assert not open_client(dead_address).ready()
    assert not is_healthy(Failure("closed", retryable=True)) and not is_healthy(Reply(503, {}, b""))
    assert is_healthy(Reply(200, {}, b"{}"))
    with scripted(CLOSE) as server, pytest.raises(RefusalError, match="404"):
        open_client(server.address).health()


PROBLEM = Problem(
    title="Too long", status=422, detail="900\nof 512", field="inputs[3]", remedy="cut"
)
ERRORS = [
    (RefusalError(PROBLEM), ["422", "inputs[3]", "Too long", "900 of 512", "cut"]),
    (
        RefusalError(Problem(title="Rate", status=429, detail="slow"), 4, 3.2, "abc"),
        ["429", "tried 4 times in 3.2 s"],
    ),
    (
        UnreachableError("http://a", "connection refused", 9, 60.0),
        ["http://a", "refused", "9 times"],
    ),
    (NoAnswerError("http://a", "late", 1, 60.0), ["http://a", "late", "once", "timeout_seconds"]),
    (AnswerError("http://a", "no JSON"), ["http://a", "no JSON"]),
]


@pytest.mark.parametrize(("error", "facts"), ERRORS)
def test_an_error_is_one_line_here_and_in_other_processes(error, facts):
    line = str(error)
    assert isinstance(error, ClientError) and "\n" not in line
    assert all(fact in line for fact in facts)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == line and vars(copy) == vars(error)

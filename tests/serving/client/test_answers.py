"""What a server says of itself, and refusals of whatever stands before it."""

import pytest
from scripted_server import CLOSE, scripted

from serving.client import AnswerError, RefusalError
from serving.client.answers import info_of, is_well, limits_of, refusal_of
from serving.client.exchange import Lost, Reply
from serving.limits import Limits


def test_a_refusal_has_the_fields_of_its_problem():
    body = b'{"title":"T","status":422,"detail":"d","field":"f","remedy":"r","more":1}'
    told = refusal_of(Reply(422, {"X-Request-Id": "abc"}, body, attempts=3, seconds=1.0))
    fields = (told.title, told.status, told.detail, told.field, told.remedy)
    assert fields == ("T", 422, "d", "f", "r")
    assert (told.request_id, told.attempts, told.seconds) == ("abc", 3, 1.0)


@pytest.mark.parametrize(("status", "title"), [(502, "Bad Gateway"), (599, "Refused")])
def test_a_refusal_without_a_problem_is_one_too(status, title):
    told = refusal_of(Reply(status, {}, b"<html>nginx</html>"))
    assert (told.status, told.title) == (status, title)
    assert "nginx" not in str(told)


def test_a_server_that_does_not_show_its_limits_has_the_usual_ones():
    assert limits_of(Reply(404, {}, b""), "") == Limits()
    with pytest.raises(RefusalError):
        info_of(Reply(404, {}, b""), "")
    with pytest.raises(AnswerError, match="version: Field required"):
        info_of(Reply(200, {}, b"{}"), "http://a")


def test_limits_of_later_servers_are_let_through():
    body = b'{"version":"9","models":{},"limits":{"max_items":3,"max_of_tomorrow":1}}'
    assert limits_of(Reply(200, {}, body), "").max_items == 3


def test_whether_a_server_is_well_is_no_error(open_client, dead_address):
    assert not open_client(dead_address).ready()
    assert not is_well(Lost("closed", again=True)) and not is_well(Reply(503, {}, b""))
    assert is_well(Reply(200, {}, b"{}"))
    with scripted(CLOSE) as server, pytest.raises(RefusalError, match="404"):
        open_client(server.address).health()

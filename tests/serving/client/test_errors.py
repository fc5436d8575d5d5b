"""Errors are one line, and go through other processes."""

import pickle

import pytest

from serving.client import (
    AnswerError,
    ClientError,
    NoAnswerError,
    RefusalError,
    UnreachableError,
)
from serving.schemas.fields import Problem

PROBLEM = Problem(
    title="Too long", status=422, detail="900\nof 512", field="inputs[3]", remedy="cut"
)
ERRORS = {
    "422: inputs[3]: Too long: 900 of 512 (cut)": RefusalError(PROBLEM),
    "429: Rate: slow; tried 4 times in 3.2 s": RefusalError(
        Problem(title="Rate", status=429, detail="slow"), 4, 3.2, "abc"
    ),
    "no server answers: http://a: connection refused, tried 9 times in 60.0 s"
    " (see that it runs, and where)": UnreachableError("http://a", "connection refused", 9, 60.0),
    "no answer in time: http://a: late, tried once in 60.0 s (ask for less at once, or"
    " give timeout_seconds or retry_seconds more)": NoAnswerError("http://a", "late", 1, 60.0),
    "no answer of such a server: http://a: no JSON (see that the address is that of a server of the"
    " client's version)": AnswerError("http://a", "no JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "error"), ERRORS.items())
def test_an_error_is_one_line_here_and_elsewhere(line, error):
    assert str(error) == line
    assert isinstance(error, ClientError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == line and vars(copy) == vars(error)

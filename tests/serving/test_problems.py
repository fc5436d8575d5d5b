"""Every exception is one problem, and says nothing that is not meant for clients."""

import pytest

from bert_core.errors import UserError
from serving.batching import DeadlineError, OverloadedError
from serving.problems import RequestError, problem_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError(413, "Too large", "big", field="body", remedy="divide it"), 413),
        (OverloadedError(2.3), 429),
        (DeadlineError(), 503),
        (UserError("unknown strategy", "lost", "take last"), 422),
        (ValueError("the secret"), 500),
    ],
)
def test_an_exception_has_its_status(error, status):
    problem, _ = problem_of(error)
    assert problem.status == status
    assert "secret" not in problem.model_dump_json()


def test_who_is_turned_away_is_told_for_how_long():
    assert problem_of(OverloadedError(2.3))[1] == {"Retry-After": "3"}
    assert problem_of(OverloadedError(0.0))[1] == {"Retry-After": "1"}


def test_what_a_client_sent_is_not_repeated_at_length():
    problem, _ = problem_of(RequestError(404, "No", "x" * 9999, field="y" * 9999, remedy="z"))
    assert len(problem.model_dump_json()) < 1000
    problem, _ = problem_of(UserError("unknown strategy", "x" * 9999, "take last"))
    assert len(problem.model_dump_json()) < 1000

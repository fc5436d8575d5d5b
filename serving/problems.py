"""What can go wrong with a request, each with its status, the field it is about, and the remedy."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from bert_core.errors import UserError
from serving.batching import DeadlineError, OverloadedError
from serving.pointers import UnreachableError
from serving.schemas.fields import Problem
from serving.token_bucket import RateLimitError

MEDIA_TYPE = "application/problem+json"

TOO_LONG = "Text too long"
"""The title of the problem of a text that a model cannot read at once."""

_REFUSALS = {
    400: "A body that is no JSON",
    401: "No key, or an unknown one, where the server asks for keys",
    403: "A key that is not for this",
    404: "An unknown model, or none that does this",
    408: "A body that came too slowly",
    413: "More than the server's limits, which /info shows",
    415: "A Content-Encoding that is none of identity, gzip and deflate",
    422: "A field that is wrong, or a text that is too long",
    429: "More is waiting than the server takes, or the key's tokens are used up",
    500: "A mistake of the server's own",
    503: "The time for the request was over before its turn came",
}

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status, description in _REFUSALS.items()
}
"""The refusals that any of our own routes may answer with, for the OpenAPI document."""


def foreign_refusals(
    shape: type[BaseModel], statuses: Sequence[int]
) -> dict[int | str, dict[str, Any]]:
    """The refusals of routes that others have defined, in their shape, for the OpenAPI document."""
    return {
        status: {"model": shape, "description": _REFUSALS.get(status, "The model failed")}
        for status in statuses
    }


class RequestError(Exception):
    """A request that cannot be answered, said as one problem."""

    def __init__(self, status: int, title: str, detail: str, *, field: str, remedy: str) -> None:
        super().__init__(f"{title}: {detail}")
        self.problem = Problem(
            title=title, status=status, detail=detail, field=field, remedy=remedy
        )


def problem_of(error: Exception) -> tuple[Problem, Mapping[str, str]]:
    """The problem that an exception is to the client, and the headers that go with it.

    Nothing of the inside of an exception that is not meant for clients.
    """
    headers: Mapping[str, str] = {}
    match error:
        case RequestError():
            problem = error.problem
            headers = _HEADERS.get(problem.status, {})
        case OverloadedError():
            problem = Problem(
                title="Too many requests",
                status=429,
                detail="more is waiting than this server takes",
                remedy="ask again after the seconds that Retry-After says",
            )
            headers = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
        case RateLimitError():
            problem = Problem(
                title="Rate limit",
                status=429,
                detail="the tokens of this key are used up for now",
                remedy="ask again after the seconds that Retry-After says",
            )
            headers = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
        case DeadlineError():
            problem = Problem(
                title="Out of time",
                status=503,
                detail="the time for this request was over before its turn came",
                remedy="ask again, with less at once",
            )
        case UnreachableError():
            problem = Problem(
                title="MLflow does not answer",
                status=503,
                detail=f"{error.what}: {error.where}",
                remedy=error.remedy,
            )
        case UserError():
            problem = Problem(
                title="Cannot be done",
                status=422,
                detail=f"{error.what}: {error.where}",
                remedy=error.remedy,
            )
        case RequestValidationError():
            problem = _invalid(error)
        case HTTPException():
            problem = Problem(
                title=str(error.detail),
                status=error.status_code,
                detail=_DETAILS.get(error.status_code, str(error.detail)),
                remedy="see /docs",
            )
            headers = error.headers or {}
        case _:
            problem = Problem(
                title="Internal error", status=500, detail="a mistake of the server's own"
            )
    # What a client sent may be in it: a name that nobody has, a field that nobody knows.
    return problem.model_copy(
        update={"detail": _cut(problem.detail), "field": problem.field and _cut(problem.field)}
    ), headers


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 400
"""Characters of a detail or of a field's name that are told."""


_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 415: {"Accept-Encoding": "gzip, deflate"}}

_DETAILS = {
    400: "the body is no JSON",
    404: "there is nothing here",
    405: "this method is not for this address",
}


_FIELD = re.compile(r"(?!str$|function-)[a-z]\w*")
"""The name of a field, not that of a branch of a union: `str`, `list[str]`, `TextPair`."""


def _invalid(error: RequestValidationError) -> Problem:
    """The problem of a body that is not what its route takes, of which no text is repeated."""
    mistakes = [(_path_of(each), each) for each in error.errors()]
    # Of a union each branch has its say: what got furthest is what was meant.
    field, mistake = max(mistakes, key=lambda each: len(each[0]))
    if mistake["type"] == "json_invalid":
        place, reason = mistake["loc"][-1], mistake.get("ctx", {}).get("error", mistake["msg"])
        return Problem(
            title="Not JSON",
            status=400,
            detail=f"{reason}, at character {place}",
            remedy="mend the body, or send it as it came from a library",
        )
    if not field:
        return Problem(
            title="No object",
            status=422,
            detail="the body is no JSON object, or is not said to be one",
            remedy="send an object, with Content-Type: application/json",
        )
    return Problem(
        title="Wrong field",
        status=422,
        detail=str(mistake["msg"]),
        field=_written(field),
        remedy="leave it out" if mistake["type"] == "extra_forbidden" else "see /docs",
    )


def _path_of(mistake: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Where a mistake is; an unknown field may have any name."""
    *above, last = mistake["loc"]
    if mistake["type"] == "extra_forbidden":
        return (*_path(tuple(above)), last)
    return _path(mistake["loc"])


def _path(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The fields and numbers of a place in a body, without the names of types."""
    inside = location[1:] if location[:1] == ("body",) else location
    return tuple(each for each in inside if isinstance(each, int) or _FIELD.fullmatch(each))


def _written(path: tuple[int | str, ...]) -> str:
    """`inputs[3].text`."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)[1:]

"""What a request that fails is answered with, in the shape of each family of routes."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from bert_core.errors import UserError, one_line
from serving.batching import DeadlineError, OverloadedError
from serving.keys import RateLimitError
from serving.request_context import own_path
from serving.rollout.aliases import UnreachableError
from serving.schemas import Problem

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
    500: "An error inside the server",
    503: "The request timed out in the queue",
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
    """A request that is refused with one problem."""

    def __init__(self, status: int, title: str, detail: str, *, field: str, remedy: str) -> None:
        super().__init__(f"{title}: {detail}")
        self.problem = Problem(
            title=title, status=status, detail=detail, field=field, remedy=remedy
        )


def problem_of(error: Exception) -> tuple[Problem, Mapping[str, str]]:
    """Returns the problem that an exception is to a client, and the headers of the answer.

    It contains nothing of an exception that is not meant for clients.
    """
    headers: Mapping[str, str] = {}
    match error:
        case RequestError():
            problem = error.problem
            headers = _HEADERS.get(problem.status, {})
        case OverloadedError() | RateLimitError():
            problem = _KNOWN[type(error)]
            headers = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
        case DeadlineError():
            problem = _KNOWN[type(error)]
        case UserError():
            is_away = isinstance(error, UnreachableError)
            problem = Problem(
                title="MLflow does not answer" if is_away else "Cannot be done",
                status=503 if is_away else 422,
                detail=f"{error.what}: {error.where}",
                remedy=error.remedy,
            )
        case RequestValidationError():
            problem = _invalid(error)
        case HTTPException():
            title, status = str(error.detail), error.status_code
            detail = _DETAILS.get(status, title)
            problem = Problem(title=title, status=status, detail=detail, remedy="see /docs")
            headers = error.headers or {}
        case _:
            detail = "an error inside the server"
            problem = Problem(title="Internal error", status=500, detail=detail)
    # It may contain what a client sent, such as an unknown name of any length and any characters.
    shown = {
        "detail": one_line(_cut(problem.detail)),
        "field": problem.field and one_line(_cut(problem.field)),
        "remedy": problem.remedy and one_line(problem.remedy),
    }
    return problem.model_copy(update=shown), headers


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST = 400
"""Characters of a detail or of a field's name that are sent."""


_KNOWN: dict[type[Exception], Problem] = {
    OverloadedError: Problem(
        title="Too many requests",
        status=429,
        detail="more is waiting than this server takes",
        remedy="ask again after the seconds that Retry-After says",
    ),
    RateLimitError: Problem(
        title="Rate limit",
        status=429,
        detail="the tokens of this key are used up for now",
        remedy="ask again after the seconds that Retry-After says",
    ),
    DeadlineError: Problem(
        title="Out of time",
        status=503,
        detail="the request timed out in the queue",
        remedy="ask again, with less at once",
    ),
}

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
    mistakes = [(_path_of(found), found) for found in error.errors()]
    # Of a union each branch has its say: what got furthest is what was meant.
    field, mistake = max(mistakes, key=_progress)
    if mistake["type"] == "json_invalid":
        place, reason = mistake["loc"][-1], mistake.get("ctx", {}).get("error", mistake["msg"])
        return Problem(
            title="Not JSON",
            status=400,
            detail=f"{reason}, at character {place}",
            remedy="correct the body, or send it as a JSON library wrote it",
        )
    if not field and mistake["type"] == "string_unicode":
        return Problem(
            title="Wrong field",
            status=422,
            detail="the name of a field has half a character (a lone surrogate)",
            remedy="leave it out",
        )
    if not field:
        return Problem(
            title="No object",
            status=422,
            detail="the body is no JSON object, or its Content-Type is not JSON",
            remedy="send an object, with Content-Type: application/json",
        )
    return Problem(
        title="Wrong field",
        status=422,
        detail=str(mistake["msg"]),
        field=_written(field),
        remedy="leave it out" if mistake["type"] == "extra_forbidden" else "see /docs",
    )


def _progress(
    located: tuple[tuple[int | str, ...], Mapping[str, Any]],
) -> tuple[int, tuple[int, ...], bool]:
    """How far a branch came: fields within fields, entries of lists, values of the right type."""
    path, mistake = located
    numbers = tuple(part for part in path if isinstance(part, int))
    return len(path), numbers, not mistake["type"].endswith("_type")


def _path_of(mistake: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Where an error is; an unknown field may have any name."""
    *above, last = mistake["loc"]
    if mistake["type"] == "extra_forbidden":
        return (*_path(tuple(above)), last)
    return _path(mistake["loc"])


def _path(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The fields and numbers of a place in a body, without the names of types."""
    inside = location[1:] if location[:1] == ("body",) else location
    return tuple(part for part in inside if isinstance(part, int) or _FIELD.fullmatch(part))


def _written(path: tuple[int | str, ...]) -> str:
    """`inputs[3].text`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]


Shape = Callable[[Problem], tuple[int, dict[str, Any]]]
"""Status and content of a problem in a family's own shape."""


def refusal(path: str, error: Exception) -> Response:
    """The answer to a request that ended in an exception, in the shape of its path's family."""
    problem, headers = problem_of(error)
    shape = next((found for prefix, found in _SHAPES.items() if _is_under(path, prefix)), None)
    if shape is not None:
        status, content = shape(problem)
        return JSONResponse(content, status, headers)
    return Response(
        problem.model_dump_json(exclude_none=True),
        problem.status,
        media_type=MEDIA_TYPE,
        headers=headers,
    )


async def handle(request: Request, error: Exception) -> Response:
    """FastAPI's handler of the exceptions of routes."""
    return refusal(own_path(request.scope), error)


async def respond(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """Refuses a request in middleware, before a route."""
    await refusal(own_path(scope), error)(scope, receive, send)


def _in_words(problem: Problem) -> str:
    where = f"{problem.field}: " if problem.field else ""
    remedy = f" ({problem.remedy})" if problem.remedy else ""
    return f"{where}{problem.title}: {problem.detail}{remedy}"


def _hugging_face(problem: Problem) -> tuple[int, dict[str, Any]]:
    return problem.status, {"error": _in_words(problem)}


def _embeddings_inference(problem: Problem) -> tuple[int, dict[str, Any]]:
    """TEI has 413 for all that is too much, 424 for a model that failed."""
    status, kind = {
        413: (413, "Validation"),
        422: (413, "Validation") if problem.title == TOO_LONG else (422, "Validation"),
        429: (429, "Overloaded"),
        500: (424, "Backend"),
        503: (503, "Unhealthy"),
    }.get(problem.status, (problem.status, "Validation"))
    return status, {"error": _in_words(problem), "error_type": kind}


def _openai(problem: Problem) -> tuple[int, dict[str, Any]]:
    """OpenAI has 400 for every wrong field."""
    status = 400 if problem.status == 422 else problem.status
    kind = {429: "rate_limit_exceeded"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    code = "model_not_found" if status == 404 and problem.field == "model" else None
    mistake = {
        "message": _in_words(problem),
        "type": kind,
        "param": problem.field,
        "code": code,
    }
    return status, {"error": mistake}


def _reranking(problem: Problem) -> tuple[int, dict[str, Any]]:
    return problem.status, {"message": _in_words(problem)}


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


_SHAPES: dict[str, Shape] = {
    "/hf": _hugging_face,
    **dict.fromkeys(
        ("/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity", "/rerank"),
        _embeddings_inference,
    ),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank"), _reranking),
    **dict.fromkeys(("/v1/embeddings", "/v1/models"), _openai),
}
"""By the beginning of their paths; all others are our own."""

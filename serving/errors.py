"""Refusals in the shape that each family of routes has for them."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from serving.mounting import own_path
from serving.problems import MEDIA_TYPE, TOO_LONG, problem_of
from serving.schemas.fields import Problem

Shape = Callable[[Problem], tuple[int, dict[str, Any]]]
"""Status and content of a problem in a family's own shape."""


def refusal(path: str, error: Exception) -> Response:
    """The answer to a request that ended in an exception, as those who ask at this path know it."""
    problem, headers = problem_of(error)
    shape = next((each for prefix, each in _SHAPES.items() if _is_under(path, prefix)), None)
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
    """For FastAPI: what an exception in a route becomes."""
    return refusal(own_path(request.scope), error)


async def respond(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """For middleware: refuses a request that no route has seen."""
    await refusal(own_path(scope), error)(scope, receive, send)


def _in_words(problem: Problem) -> str:
    """All that a problem says, in a line."""
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


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


_SHAPES: dict[str, Shape] = {
    "/hf": _hugging_face,
    **dict.fromkeys(("/embed", "/embed_all", "/predict", "/similarity"), _embeddings_inference),
    **dict.fromkeys(("/v1/embeddings", "/v1/models"), _openai),
}
"""By the beginning of their paths; all others are our own."""

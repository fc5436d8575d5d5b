"""Refusals in the shape that each family of routes has for them."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving.problems import MEDIA_TYPE, problem_of


def refusal(path: str, error: Exception) -> Response:
    """The answer to a request that ended in an exception, as those who ask at this path know it."""
    del path  # one family so far
    problem, headers = problem_of(error)
    return Response(
        problem.model_dump_json(exclude_none=True),
        problem.status,
        media_type=MEDIA_TYPE,
        headers=headers,
    )


async def handle(request: Request, error: Exception) -> Response:
    """For FastAPI: what an exception in a route becomes."""
    return refusal(request.url.path, error)


async def respond(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """For middleware: refuses a request that no route has seen."""
    await refusal(scope["path"], error)(scope, receive, send)

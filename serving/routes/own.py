"""How our own routes are registered."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from serving.problems import PROBLEMS

Handlers = Mapping[str, tuple[Callable[..., Any], type[BaseModel]]]
"""The handler of each path, and the answer that it gives."""


def own_router(tag: str, handlers: Handlers) -> APIRouter:
    """Routes that take JSON by POST, each with what it gives and what it may refuse."""
    router = APIRouter(tags=[tag])
    for path, (handler, answer) in handlers.items():
        router.add_api_route(
            path, handler, methods=["POST"], response_model=answer, responses=PROBLEMS
        )
    return router

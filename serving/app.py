"""The HTTP application: routes over an engine, under uvicorn or as Ray Serve's ingress."""

from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from bert_core.errors import UserError
from serving.batching import DeadlineError, OverloadedError
from serving.bodies import BoundedBodies
from serving.engine import Engine
from serving.errors import handle
from serving.problems import RequestError
from serving.routes.operations import OperationRoutes
from serving.routes.pretrained import PretrainedRoutes
from serving.routes.tasks import TaskRoutes
from serving.routes.texts import TextRoutes
from serving.schemas.fields import Problem

_MENDABLE = (
    RequestError,
    OverloadedError,
    DeadlineError,
    UserError,
    RequestValidationError,
    HTTPException,
)


def create_app(engine: Engine) -> FastAPI:
    """The application that answers from the models of an engine."""
    app = FastAPI(
        title="Bertline",
        summary="Classification, named entities, question answering and features",
        exception_handlers=dict.fromkeys((*_MENDABLE, Exception), handle),
    )
    app.include_router(OperationRoutes(engine).router)
    app.include_router(TaskRoutes(engine).router)
    app.include_router(PretrainedRoutes(engine).router)
    app.include_router(TextRoutes(engine).router)
    app.add_middleware(BoundedBodies, limits=engine.limits)
    app.openapi = partial(_document, app)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the problem that all refusals are described by."""
    document = FastAPI.openapi(app)
    document["components"]["schemas"]["Problem"] = Problem.model_json_schema()
    return document

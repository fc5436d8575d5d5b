"""The HTTP application: routes over an engine, under uvicorn or as Ray Serve's ingress."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from bert_core.errors import UserError
from serving.batching import DeadlineError, OverloadedError
from serving.engine import Engine
from serving.errors import RequestError, handle
from serving.keys import Keys, RateLimitError
from serving.middleware.access import Authenticated, KnownHosts, open_to_origins
from serving.middleware.body_limits import BodyLimits
from serving.middleware.instrumentation import Admission, Instrumented, SlashAtPrefix
from serving.rollout.admin import (
    MAX_WEBHOOK_BYTES,
    WEBHOOK_PATH,
    AdminRoutes,
    Rollout,
    WebhookRoutes,
)
from serving.routes.embeddings import EmbeddingsInferenceRoutes, OpenAIRoutes
from serving.routes.hugging_face import HuggingFaceRoutes
from serving.routes.operations import OperationRoutes
from serving.routes.pages import PageRoutes
from serving.routes.tasks import TaskRoutes
from serving.routes.texts import TextRoutes
from serving.schemas import Problem

if TYPE_CHECKING:
    from serving.telemetry.otlp import Tracing

_HANDLED = (
    RequestError,
    OverloadedError,
    RateLimitError,
    DeadlineError,
    UserError,
    RequestValidationError,
    HTTPException,
)


def create_app(
    engine: Engine,
    keys: Keys | None = None,
    cors_origins: Sequence[str] = (),
    tracing: "Tracing | None" = None,
    rollout: Rollout | None = None,
    webhook_secret: bytes | None = None,
    allowed_hosts: Sequence[str] = (),
) -> FastAPI:
    """The application that answers from the models of an engine.

    With `keys` it asks for one; without, it answers under loopback names and allowed hosts alone.
    Browser pages may ask where they are of one of the CORS origins. With `rollout` it has the admin
    routes, with a webhook secret also the route by which MLflow reports moved aliases. It closes
    the tracing when it ends.
    """
    app = FastAPI(
        title="Bertline",
        summary="Classification, named entities, question answering and features",
        exception_handlers=dict.fromkeys(_HANDLED, handle),
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,  # to an absolute address, http:// where TLS ends before this server
        lifespan=None if tracing is None else partial(_traced, tracing),
        # FastAPI's own tracing would send paths, headers and what exceptions say.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    routers = [
        TaskRoutes(engine).router,
        TextRoutes(engine).router,
        HuggingFaceRoutes(engine).router,
        EmbeddingsInferenceRoutes(engine).router,
        OpenAIRoutes(engine).router,
        OperationRoutes(engine).router,
        PageRoutes(app.title).router,
    ]
    if rollout is not None:
        routers.append(AdminRoutes(rollout).router)
    if rollout is not None and webhook_secret is not None:
        routers.append(WebhookRoutes(rollout, webhook_secret).router)
    for router in routers:
        _answer_head(router)
        app.include_router(router)
    # The last one is around all others.
    app.add_middleware(SlashAtPrefix)
    app.add_middleware(BodyLimits, limits=engine.limits, lower={WEBHOOK_PATH: MAX_WEBHOOK_BYTES})
    if keys is not None:
        app.add_middleware(Authenticated, keys=keys)
    if keys is None or allowed_hosts:
        app.add_middleware(KnownHosts, allowed=allowed_hosts)
    app.add_middleware(Instrumented, metrics=engine.metrics, tracing=tracing)
    app.add_middleware(Admission, engine=engine)
    if cors_origins:
        open_to_origins(app, cors_origins)
    app.openapi = partial(_document, app)
    return app


def _answer_head(router: APIRouter) -> None:
    """Answers HEAD wherever GET is answered, for probes; left out of the document."""
    for route in [route for route in router.routes if isinstance(route, APIRoute)]:
        if "GET" in (route.methods or ()):
            router.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False
            )


@asynccontextmanager
async def _traced(tracing: "Tracing", app: FastAPI) -> AsyncIterator[None]:
    """The lifespan of an application; the last spans are sent at its end."""
    del app
    yield
    await asyncio.to_thread(tracing.close)


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with our `Problem` in place of FastAPI's validation error."""
    document = FastAPI.openapi(app)
    schemas = document["components"]["schemas"]
    schemas["Problem"] = Problem.model_json_schema()
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    return document

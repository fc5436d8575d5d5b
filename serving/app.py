"""The HTTP application: routes over an engine that follows MLflow's registry.

It runs under uvicorn or as Ray Serve's ingress.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from bert_core.errors import UserError
from bert_core.machine import freeze_garbage_collector, keep_malloc_small, release_memory
from serving.addresses import TRACES_PATH
from serving.batching import DeadlineError, OverloadedError
from serving.engine import Engine
from serving.errors import RequestError, handle
from serving.keys import Keys, RateLimitError
from serving.limits import Limits
from serving.middleware.access import Authenticated, KnownHosts, open_to_origins
from serving.middleware.body_limits import BodyLimits
from serving.middleware.instrumentation import Admission, Instrumented, SlashAtPrefix
from serving.models import ModelLoader, Products, ServedModel, close_models, open_model
from serving.rollout.admin import (
    MAX_WEBHOOK_BYTES,
    WEBHOOK_PATH,
    AdminRoutes,
    Rollout,
    WebhookRoutes,
    read_secret,
)
from serving.rollout.aliases import (
    Address,
    Slot,
    Variants,
    VariantSource,
    fetched,
    last_good_path,
    read_pointer,
    title_of,
)
from serving.rollout.controller import Controller
from serving.rollout.traffic import Variant
from serving.rollout.watcher import Coordination, Watcher, WatchProcess, WatchSettings
from serving.routes.embeddings import EmbeddingsInferenceRoutes, OpenAIRoutes
from serving.routes.hugging_face import HuggingFaceRoutes
from serving.routes.operations import OperationRoutes
from serving.routes.pages import PageRoutes
from serving.routes.reranking import RerankRoutes
from serving.routes.sparse_embeddings import SparseEmbeddingRoutes
from serving.routes.tasks import TaskRoutes
from serving.routes.texts import TextRoutes
from serving.routes.zero_shot import ZeroShotRoutes
from serving.schemas import Problem
from serving.settings import ApplicationSettings

if TYPE_CHECKING:
    from serving.telemetry.otlp import Tracing

_LOG = logging.getLogger(__name__)

_HANDLED = (
    RequestError,
    OverloadedError,
    RateLimitError,
    DeadlineError,
    UserError,
    RequestValidationError,
    HTTPException,
)


def start_application(
    settings: ApplicationSettings,
    device: torch.device,
    num_threads: int,
    keys: Keys | None,
    *,
    coordination: Coordination | None = None,
    watcher_of: Callable[[WatchSettings], Watcher] = WatchProcess,
    instance: str | None = None,
) -> tuple[FastAPI, "RunningEngine"]:
    """Starts the engine of a server, and makes its application; the caller closes the engine.

    `instance` names this server in traces. Raises `UserError` as `RunningEngine.start`, and for a
    webhook secret or tracing that is not there.
    """
    keep_malloc_small()  # before the engine has threads
    secret_file = settings.webhook_secret_file
    secret = None if secret_file is None else read_secret(secret_file)
    tracing = start_tracing(settings.otlp_endpoint, settings.trace_share, instance)
    watching = WatchSettings(
        tracking_uri=settings.tracking_uri,
        cache=settings.cache,
        poll_seconds=settings.poll_seconds,
        cache_gib=settings.cache_gib,
    )
    running = RunningEngine.start(
        settings.models,
        loader_for(device, settings.limits, num_threads, settings.precision),
        settings.limits,
        watching,
        settings.variants,
        coordination,
        watcher_of,
    )
    with ExitStack() as if_it_fails:
        if_it_fails.callback(running.close)
        app = create_app(
            *(running.engine, keys, settings.cors_origins, tracing, running.rollout, secret),
            allowed_hosts=settings.allowed_hosts,
        )
        app.openapi()  # takes a second, which no request should wait for
        if_it_fails.pop_all()
    freeze_garbage_collector()
    return app, running


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
        RerankRoutes(engine).router,
        SparseEmbeddingRoutes(engine).router,
        ZeroShotRoutes(engine).router,
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


def start_tracing(
    endpoint: str | None, share: float, instance: str | None = None
) -> "Tracing | None":
    """Starts sending spans to a collector; without one OpenTelemetry is not imported.

    `instance` names this server, by default by its host and process. Raises `UserError` where
    OpenTelemetry is not installed.
    """
    if endpoint is None:
        return None
    try:
        from serving.telemetry.otlp import Tracing
    except ModuleNotFoundError as error:
        what = f"tracing without its packages ({error.name})"
        remedy = "in the checkout: pip install -e '.[tracing]'"
        raise UserError(what, f"otlp_endpoint {endpoint}", remedy) from error
    return Tracing(endpoint.rstrip("/") + TRACES_PATH, share, instance)


@dataclass
class RunningEngine:
    """An engine, its rollout, and what runs with it."""

    engine: Engine
    rollout: Rollout
    _running: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def start(
        cls,
        models: Mapping[str, Path | Address],
        loader: ModelLoader,
        limits: Limits,
        watching: WatchSettings,
        variants: Variants | None = None,
        coordination: Coordination | None = None,
        watcher_of: Callable[[WatchSettings], Watcher] = WatchProcess,
    ) -> Self:
        """Fetches models from MLflow, opens all of them and has each compute once.

        Raises `UserError` for a model that is damaged or does not answer as it should. A version
        of the registry is then replaced by the last good one of this cache, if there is one; a
        canary or shadow of the registry may be missing at the start, whatever is wrong with it.
        """
        variants = variants or {}
        addresses = {source for source in models.values() if isinstance(source, Address)}
        opened: dict[str, ServedModel] = {}
        with ExitStack() as started, ExitStack() as not_yet_owned:
            not_yet_owned.callback(lambda: close_models(list(opened.values()), finish=False))
            watcher = watcher_of(replace(watching, addresses=tuple(sorted(addresses, key=str))))
            started.callback(watcher.close)
            if addresses:
                watcher.start()
            for name, source in models.items():
                present = list(opened.values())
                opened[name] = _open_or_last_good(loader, name, source, present, watcher)
            engine = Engine(opened, limits, loader)
            started.callback(engine.close)
            for slot, variant in variants.items():
                _set_variant(engine, slot, variant, watcher)
            release_memory()  # the weights as they were read
            is_kept_up = watching.poll_seconds > 0
            controller = Controller(engine, watcher, models, variants, is_kept_up=is_kept_up)
            controller.start()
            started.callback(controller.close)
            coordination = coordination or Coordination()
            coordination.start(controller)
            started.callback(coordination.close)
            not_yet_owned.pop_all()
            return cls(engine, Rollout(engine, controller, coordination), started.pop_all())

    def close(self) -> None:
        """Stops the rollout, the watcher and the engine."""
        self._running.close()


def loader_for(
    device: torch.device, limits: Limits, num_threads: int, precision: Products
) -> ModelLoader:
    """The loader of a server's models.

    On the CPU `num_threads` threads compute one micro-batch each, so torch's own threads are set
    to one.
    """
    on_cpu = device.type == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    return ModelLoader(
        device=device,
        max_tokens=limits.max_batch_tokens,
        max_waiting_tokens=limits.max_waiting_tokens,
        num_threads=num_threads if on_cpu else 1,
        autocast_dtype=torch.bfloat16 if precision == "bfloat16" else None,
    )


def _set_variant(engine: Engine, slot: Slot, wanted: VariantSource, watcher: Watcher) -> None:
    """Opens a canary or shadow; one of the registry may follow later (`Controller`)."""
    (role, name), source = slot, wanted.source
    assert role is not None
    model = None
    try:
        if isinstance(source, Address):
            watcher.add(source)
        present = engine.traffic.present
        model = _open_or_last_good(engine.loader, name, source, present, watcher)
        engine.set_variant(name, role, Variant(model, wanted.share))
    except UserError as error:
        if model is not None:
            engine.retire(model, 0.0)
        if isinstance(source, Path):
            raise
        _LOG.warning("warning: %s starts without %s: %s", title_of(slot), source, error)


def _open_or_last_good(
    loader: ModelLoader,
    name: str,
    source: Path | Address,
    present: Collection[ServedModel],
    watcher: Watcher,
) -> ServedModel:
    found = fetched(source, watcher.pointers)
    try:
        return open_model(loader, name, found, present)
    except UserError as error:
        if isinstance(found, Path) or isinstance(source, Path):
            raise
        before = read_pointer(last_good_path(watcher.pointers[source]))
        if before is None or before == found:
            raise
        _LOG.warning(
            "warning: version %s of %s is refused, the last good version %s is served: %s",
            *(found.version, name, before.version, error),
        )
        return replace(open_model(loader, name, before, present), refused=(found, str(error)))

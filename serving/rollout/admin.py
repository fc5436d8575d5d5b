"""Routes that change a rollout: the admin routes, and the webhook by which MLflow reports aliases.

The admin routes show which versions answer, and set canaries and shadows.
"""

import asyncio
import base64
import hashlib
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError

from bert_core.errors import UserError, nearest
from serving.engine import Engine
from serving.errors import PROBLEMS, RequestError
from serving.models import ServedModel
from serving.rollout.aliases import Address, Role, Slot, VariantSource
from serving.rollout.controller import Controller
from serving.rollout.traffic import source_of
from serving.rollout.watcher import Coordination
from serving.schemas import Closed, example

_TRAFFIC = "/admin/traffic"
_VARIANT = _TRAFFIC + "/{name:path}/{role}"
"""A name is what stands before `=` of `--model`, and may have slashes."""

_REFUSALS: dict[int | str, dict[str, Any]] = PROBLEMS | {
    422: PROBLEMS[422] | {"description": "A wrong field, or a version that does not answer well"},
    503: PROBLEMS[503] | {"description": "MLflow, or other replicas, did not answer"},
}


class Rollout:
    """Sets canaries and shadows here and at all replicas; blocks, so not for the event loop."""

    def __init__(self, engine: Engine, controller: Controller, coordination: Coordination) -> None:
        self.engine = engine
        self._controller, self._coordination = controller, coordination
        self._setting = threading.Lock()  # so that all replicas hear of changes in one order

    def set_variant(self, name: str, role: Role, address: Address | None, share: float) -> None:
        """Sets the canary or shadow of a model; without an address only its share changes.

        Raises `RequestError` for a model that is not served, for a share of nothing, and where
        other replicas could not be told; `UserError` for a version that is not well and where
        MLflow does not answer: nothing has changed.
        """
        self._check_name(name)
        with self._setting:
            source: Address | Path | None = address
            variant = self.engine.traffic.variant(name, role)
            if source is None and variant is not None:
                source = source_of(variant.model)
            if source is None:
                detail = f"{name} has no {role} whose share could be changed"
                remedy = "give the address of a version, models:/NAME@ALIAS"
                raise RequestError(422, f"No {role}", detail, field="model", remedy=remedy)
            self._set((role, name), VariantSource(source, share))

    def clear(self, name: str, role: Role) -> None:
        """Removes the canary or shadow of a model; raises as `set_variant`."""
        self._check_name(name)
        with self._setting:
            self._set((role, name), None)

    def ask_now(self, registered_name: str) -> bool:
        """Has all replicas ask MLflow if they follow a model of this name there; whether so."""
        if registered_name not in self._controller.registered_names:
            return False
        self._coordination.ask_now()
        return True

    def _set(self, slot: Slot, wanted: VariantSource | None) -> None:
        self._controller.set_variant(slot, wanted)
        try:
            self._coordination.publish(slot, wanted)
        except UserError as error:
            raise RequestError(
                503,
                "Not told to all",
                f"this server has done it, other replicas may not have: {error.what}",
                field="path",
                remedy="send it again; what is done already is not repeated",
            ) from error

    def _check_name(self, name: str) -> None:
        models = self.engine.models
        if name not in models:
            detail = f"no model {name!r}{nearest(name, models)}"
            remedy = f"one of {', '.join(models)}"
            raise RequestError(404, "Unknown model", detail, field="name", remedy=remedy)


# No control characters: the address becomes a line that another process reads.
RegisteredAddress = Annotated[
    str,
    Field(
        max_length=512,
        pattern=r"^models:/[^/@\x00-\x1f\x7f-\x9f]+(@[^/@\x00-\x1f\x7f-\x9f]+|/[0-9]{1,18})$",
        description="models:/NAME@ALIAS, which is followed, or models:/NAME/3",
    ),
]


class VariantRequest(Closed):
    """The version that becomes a model's canary or shadow, and its share of the requests."""

    model_config = example(model="models:/mrpc@challenger", share=0.1)

    model: RegisteredAddress | None = Field(
        default=None, description="without it only the share of the current version changes"
    )
    share: float = Field(gt=0, le=1, description="of the model's requests")


class VersionTraffic(BaseModel):
    """A version, and the requests that it was given since it was opened (Unix seconds).

    `model` is its address at MLflow, or the name of its folder.
    """

    model: str
    version: str | None
    since: float
    requests: int


class CanaryTraffic(VersionTraffic):
    """A version that answers a share of the requests."""

    share: float


class ShadowTraffic(VersionTraffic):
    """A version that is asked a share of the requests too, and how its answers compare.

    `agree` and `differ` count items (texts, questions), `missed` the requests it had no time for.
    """

    share: float
    agree: int
    differ: int
    missed: int


class RefusedTraffic(BaseModel):
    """A version that is wanted and was refused: why, and when (Unix seconds).

    `version` is null where MLflow did not say which one it is.
    """

    model: str
    version: int | None
    reason: str
    at: float


class ModelTraffic(BaseModel):
    """The versions of a model by their roles; `refused` is empty where all are well."""

    active: VersionTraffic
    canary: CanaryTraffic | None
    shadow: ShadowTraffic | None
    refused: dict[Literal["active", "canary", "shadow"], RefusedTraffic]


class TrafficAnswer(BaseModel):
    """All models, as the replica that answers has them: each replica counts for itself."""

    models: dict[str, ModelTraffic]


class AdminRoutes:
    """The handlers, over the rollout of an engine.

    Without keys a page of another origin cannot change anything either: a browser asks before PUT
    and DELETE, and CORS allows GET and POST alone.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["admin"])
        router.add_api_route(_TRAFFIC, self.traffic, methods=["GET"], response_model=TrafficAnswer)
        for method, handler in (("PUT", self.set), ("DELETE", self.clear)):
            router.add_api_route(
                *(_VARIANT, handler),
                methods=[method],
                response_model=ModelTraffic,
                responses=_REFUSALS,
            )
        return router

    async def traffic(self) -> TrafficAnswer:
        """Shows which versions answer, their canaries and shadows, and how these have done."""
        engine = self._rollout.engine
        return TrafficAnswer(models={name: _described(engine, name) for name in engine.models})

    async def set(self, name: str, role: Role, request: VariantRequest) -> ModelTraffic:
        """Sets a model's canary or shadow to a version of MLflow's registry.

        The version is fetched, loaded and checked before the answer; where it does not answer well
        nothing changes.
        """
        address = None if request.model is None else Address.of(request.model)
        await asyncio.to_thread(self._rollout.set_variant, name, role, address, request.share)
        return _described(self._rollout.engine, name)

    async def clear(self, name: str, role: Role) -> ModelTraffic:
        """Removes a model's canary or shadow, if it has one."""
        await asyncio.to_thread(self._rollout.clear, name, role)
        return _described(self._rollout.engine, name)


def _described(engine: Engine, name: str) -> ModelTraffic:
    canary = engine.traffic.variant(name, "canary")
    shadow = engine.traffic.variant(name, "shadow")
    counts = {} if shadow is None else vars(engine.agreement(shadow.model))
    slots: dict[str, Slot] = {
        "active": (None, name),
        "canary": ("canary", name),
        "shadow": ("shadow", name),
    }
    refused = {role: _refused(engine, slot) for role, slot in slots.items()}
    return ModelTraffic.model_validate(
        {
            "active": _version(engine.models[name]),
            "canary": canary and {"share": canary.share, **_version(canary.model)},
            "shadow": shadow and {"share": shadow.share, **_version(shadow.model), **counts},
            "refused": {role: refusal for role, refusal in refused.items() if refusal is not None},
        }
    )


def _version(model: ServedModel) -> dict[str, Any]:
    return {
        "model": told_source(source_of(model)),
        "version": model.version,
        "since": model.opened_at,
        "requests": model.in_flight.total,
    }


def _refused(engine: Engine, slot: Slot) -> dict[str, Any] | None:
    state = engine.slots.get(slot)
    if state is None or state.refused is None:
        return None
    return {"model": told_source(state.source), **vars(state.refused)}


def told_source(source: Path | Address) -> str:
    """An address, or the name of a folder: where it lies is not for clients."""
    return source.name if isinstance(source, Path) else str(source)


WEBHOOK_PATH = "/webhooks/mlflow"
MAX_WEBHOOK_BYTES = 64 << 10

_SIGNATURE, _DELIVERY = "X-MLflow-Signature", "X-MLflow-Delivery-Id"
_TIMESTAMP = "X-MLflow-Timestamp"
_FRESH_SECONDS = 300.0
_MOST_DIGITS = 18
_MOST_KNOWN = 10_000
"""Deliveries that are remembered; each was signed, so only MLflow can fill this."""


def read_secret(path: Path) -> bytes:
    """The secret of a webhook; raises `UserError` for a file that cannot be read or is empty."""
    remedy = "write the secret into it that the webhook has at MLflow, a line"
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"no secret ({error.strerror})", str(path), remedy) from error
    if not secret:
        raise UserError("no secret in the file", str(path), remedy)
    return secret


class Deliveries:
    """Tells deliveries of MLflow from forged and repeated ones."""

    def __init__(self, secret: bytes, now: Callable[[], float] = time.time) -> None:
        self._secret, self._now = secret, now
        self._known: OrderedDict[str, float] = OrderedDict()

    def is_new(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether a delivery comes for the first time.

        Raises `RequestError`, 401, where the signature is not that of the body, or is not of these
        minutes. `body` is as it came: other spaces would be another signature.
        """
        delivery, timestamp = headers.get(_DELIVERY, ""), headers.get(_TIMESTAMP, "")
        signed = b".".join((delivery.encode("latin-1"), timestamp.encode("latin-1"), body))
        digest = hmac.new(self._secret, signed, hashlib.sha256).digest()
        wanted = b"v1," + base64.b64encode(digest)
        if not hmac.compare_digest(wanted, headers.get(_SIGNATURE, "").encode("latin-1")):
            detail = "this was not signed with the secret of the webhook"
            remedy = "give MLflow's webhook the secret that --webhook_secret_file has"
            raise RequestError(401, "Unknown signature", detail, field=_SIGNATURE, remedy=remedy)
        now = self._now()
        is_number = timestamp.isdecimal() and len(timestamp) < _MOST_DIGITS
        if not is_number or abs(now - int(timestamp)) > _FRESH_SECONDS:
            detail = f"this was not sent within {_FRESH_SECONDS:.0f} seconds of now"
            remedy = "set the clocks of both machines"
            raise RequestError(401, "Too old or too new", detail, field=_TIMESTAMP, remedy=remedy)
        return self._note(delivery, now)

    def _note(self, delivery: str, now: float) -> bool:
        known = self._known
        # One that is older than twice that is refused by its timestamp, should it come again.
        while known and (
            len(known) > _MOST_KNOWN or next(iter(known.values())) < now - 2 * _FRESH_SECONDS
        ):
            known.popitem(last=False)
        if delivery in known:
            return False
        known[delivery] = now
        return True

    def forget(self, headers: Mapping[str, str]) -> None:
        """Forgets a delivery, which MLflow will send again."""
        self._known.pop(headers.get(_DELIVERY, ""), None)


class WebhookEvent(BaseModel):
    """An event at MLflow: the fields that are read here."""

    model_config = example(
        entity="model_version_alias",
        action="created",
        timestamp="2026-01-31T12:00:00+00:00",
        data={"name": "mrpc", "alias": "champion", "version": "7"},
    )

    entity: Literal["model_version_alias"]
    action: Literal["created", "deleted"]
    data: dict[str, Any]


class WebhookAnswer(BaseModel):
    """Whether MLflow is asked: only where the event concerns a model that is served here."""

    asked: bool


class WebhookRoutes:
    """The handler; a signature by the secret takes the place of a key."""

    def __init__(self, rollout: Rollout, secret: bytes) -> None:
        self._rollout, self._deliveries = rollout, Deliveries(secret)

    @property
    def router(self) -> APIRouter:
        """The route under its path."""
        router = APIRouter(tags=["operation"])
        body = {"application/json": {"schema": WebhookEvent.model_json_schema()}}
        router.add_api_route(
            WEBHOOK_PATH,
            self.take,
            methods=["POST"],
            response_model=WebhookAnswer,
            responses={status: PROBLEMS[status] for status in (400, 401, 408, 413, 415, 500, 503)},
            openapi_extra={"requestBody": {"content": body, "required": True}},
        )
        return router

    async def take(self, request: Request) -> WebhookAnswer:
        """Takes a signed event of MLflow; an alias that moved is followed at once."""
        body = await request.body()
        if not self._deliveries.is_new(request.headers, body):
            return WebhookAnswer(asked=False)
        try:
            event = WebhookEvent.model_validate_json(body)
        except ValidationError:  # something else has happened there
            return WebhookAnswer(asked=False)
        try:
            asked = await asyncio.to_thread(self._rollout.ask_now, str(event.data.get("name")))
        except UserError as error:
            self._deliveries.forget(request.headers)
            raise RequestError(
                503, "Not told to all", error.what, field="body", remedy="send it again"
            ) from error
        return WebhookAnswer(asked=asked)

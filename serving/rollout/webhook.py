"""MLflow's webhook: an alias has moved, so MLflow is asked now."""

import asyncio
import base64
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.errors import UserError
from serving.errors import PROBLEMS, RequestError
from serving.rollout.admin import Rollout
from serving.schemas import example

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

    model_config = ConfigDict() | example(
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

"""The route that MLflow's webhooks are sent to: an alias has moved, so MLflow is asked now."""

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.errors import UserError
from serving.problems import PROBLEMS, RequestError
from serving.schemas.fields import example
from serving.steering import Steering
from serving.webhook import WEBHOOK_PATH, Deliveries


class WebhookEvent(BaseModel):
    """What has happened at MLflow, as far as it is read here: it may have much more."""

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
    """Whether MLflow is asked for it: not where nothing that is served here has changed."""

    asked: bool


class WebhookRoutes:
    """The handler, over what has MLflow asked; whoever knows the secret needs no key."""

    def __init__(self, steering: Steering, secret: bytes) -> None:
        self._steering, self._deliveries = steering, Deliveries(secret)

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
        """Takes what MLflow has sent and signed; an alias that moved is followed at once."""
        body = await request.body()
        if not self._deliveries.is_new(request.headers, body):
            return WebhookAnswer(asked=False)
        try:
            event = WebhookEvent.model_validate_json(body)
        except ValidationError:  # something else has happened there
            return WebhookAnswer(asked=False)
        try:
            asked = await asyncio.to_thread(self._steering.look, str(event.data.get("name")))
        except UserError as error:
            self._deliveries.forget(request.headers)
            raise RequestError(
                503, "Not told to all", error.what, field="body", remedy="send it again"
            ) from error
        return WebhookAnswer(asked=asked)

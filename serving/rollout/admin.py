"""The admin routes: which versions answer, and setting canaries and shadows."""

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from bert_core.errors import UserError, nearest
from serving.engine import Engine
from serving.errors import PROBLEMS, RequestError
from serving.models import ServedModel
from serving.rollout.aliases import Address, Role, Slot, VariantSource
from serving.rollout.controller import Controller
from serving.rollout.traffic import source_of
from serving.rollout.watcher import Coordination
from serving.schemas import example

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


class VariantRequest(BaseModel):
    """The version that becomes a model's canary or shadow, and its share of the requests."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False) | example(
        model="models:/mrpc@challenger", share=0.1
    )

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

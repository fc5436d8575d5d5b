"""Routes for those who steer a server: which versions answer, and setting canaries and shadows."""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from serving.engine import Engine
from serving.followed import Place, source_of
from serving.models import ServedModel
from serving.pointers import Address
from serving.problems import PROBLEMS
from serving.schemas.admin import (
    BesideRequest,
    CanaryStanding,
    ModelTraffic,
    RefusedStanding,
    ShadowStanding,
    Standing,
    TrafficAnswer,
)
from serving.steering import Steering
from serving.traffic import Role

_TRAFFIC = "/admin/traffic"
_BESIDE = _TRAFFIC + "/{name:path}/{role}"
"""A name is what stands before `=` of `--model`, and may have slashes."""

_REFUSALS: dict[int | str, dict[str, Any]] = PROBLEMS | {
    422: PROBLEMS[422] | {"description": "A field that is wrong, or a version that is not well"},
    503: PROBLEMS[503] | {"description": "MLflow, or other replicas, did not answer"},
}


class AdminRoutes:
    """The handlers, over what steers an engine.

    Without keys a page of another origin cannot change anything either: for PUT and DELETE a
    browser asks before, and is not told that it may (`cross_origin` lets GET and POST through).
    """

    def __init__(self, steering: Steering) -> None:
        self._steering = steering

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["admin"])
        router.add_api_route(_TRAFFIC, self.traffic, methods=["GET"], response_model=TrafficAnswer)
        for method, handler in (("PUT", self.set), ("DELETE", self.clear)):
            router.add_api_route(
                _BESIDE, handler, methods=[method], response_model=ModelTraffic, responses=_REFUSALS
            )
        return router

    async def traffic(self) -> TrafficAnswer:
        """Which versions answer, which stand beside them, and how these have done."""
        engine = self._steering.engine
        return TrafficAnswer(models={name: _described(engine, name) for name in engine.models})

    async def set(self, name: str, role: Role, request: BesideRequest) -> ModelTraffic:
        """Has a version of MLflow's registry stand beside a model; answers when it does.

        It is fetched, loaded and asked its example before. Where it is not well nothing changes.
        """
        address = None if request.model is None else Address.of(request.model)
        share = request.share
        await asyncio.to_thread(self._steering.set_beside, name, role, address, share)
        return _described(self._steering.engine, name)

    async def clear(self, name: str, role: Role) -> ModelTraffic:
        """Has nobody stand there any more; that nobody did is no mistake."""
        await asyncio.to_thread(self._steering.clear, name, role)
        return _described(self._steering.engine, name)


def _described(engine: Engine, name: str) -> ModelTraffic:
    canary = engine.traffic.beside(name, "canary")
    shadow = engine.traffic.beside(name, "shadow")
    places: dict[str, Place] = {
        "active": (None, name),
        "canary": ("canary", name),
        "shadow": ("shadow", name),
    }
    refused = {key: _refused(engine, place) for key, place in places.items()}
    return ModelTraffic.model_validate(
        {
            "active": Standing(**_standing(engine.models[name])),
            "canary": canary and CanaryStanding(share=canary.share, **_standing(canary.model)),
            "shadow": shadow
            and ShadowStanding(
                share=shadow.share,
                **_standing(shadow.model),
                **vars(engine.agreement(shadow.model)),
            ),
            "refused": {key: each for key, each in refused.items() if each is not None},
        }
    )


def _standing(model: ServedModel) -> dict[str, Any]:
    source = source_of(model)
    return {
        "model": source.name if isinstance(source, Path) else str(source),
        "version": model.version,
        "since": model.opened_at,
        "requests": model.leases.taken,
    }


def _refused(engine: Engine, place: Place) -> RefusedStanding | None:
    followed = engine.followed.get(place)
    if followed is None or followed.refused is None:
        return None
    told = followed.source.name if isinstance(followed.source, Path) else str(followed.source)
    return RefusedStanding(model=told, **vars(followed.refused))

"""Routes for those who run the server: health, readiness, what is loaded, within which limits."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict

from serving.engine import Engine
from serving.limits import Limits


class State(BaseModel):
    """Whether the server is well."""

    status: str


class ModelInfo(BaseModel):
    """A model that is served: its task, its size, and its labels, if it has any."""

    task: str | None
    labels: list[str]
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_input_length: int


class Info(BaseModel):
    """What is loaded, and within which limits it may be asked."""

    model_config = ConfigDict(protected_namespaces=())

    models: dict[str, ModelInfo]
    limits: Limits


class OperationRoutes:
    """The handlers, over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["operation"])
        router.add_api_route("/health", self.health, methods=["GET"], response_model=State)
        router.add_api_route("/ready", self.ready, methods=["GET"], response_model=State)
        router.add_api_route("/info", self.info, methods=["GET"], response_model=Info)
        router.add_api_route("/metrics", self.metrics, methods=["GET"], response_class=Response)
        return router

    async def health(self) -> State:
        """The process is alive."""
        return State(status="alive")

    async def ready(self) -> State:
        """The models are loaded and warm."""
        return State(status="ready")

    async def metrics(self) -> Response:
        """What the server counts, for Prometheus."""
        return Response(self._engine.metrics.text, media_type=CONTENT_TYPE_LATEST)

    async def info(self) -> Info:
        """What is loaded, and within which limits it may be asked."""
        models = {}
        for name, each in self._engine.models.items():
            config, task = each.config, each.task
            models[name] = ModelInfo(
                task=each.task_name,
                labels=list(task.labels) if task is not None else [],
                num_hidden_layers=config.num_hidden_layers,
                hidden_size=config.hidden_size,
                vocab_size=config.vocab_size,
                max_input_length=task.max_length
                if task is not None
                else config.max_position_embeddings,
            )
        return Info(models=models, limits=self._engine.limits)

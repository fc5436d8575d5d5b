"""Routes for those who run the server: health, readiness, what is loaded, within which limits."""

from importlib.metadata import version

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict

from bert_core.disk import file_sha256
from bert_core.lineage import Lineage
from bert_core.model_folder import CHECKSUMS
from bert_core.quantization import Precision
from serving.engine import Engine
from serving.limits import Limits
from serving.models import Products, ServedModel


class State(BaseModel):
    """Whether the server is well."""

    status: str


class RegisteredVersion(BaseModel):
    """What a model is in MLflow's registry.

    `alias` is None where the version was asked for by its number; an alias may have moved since.
    """

    name: str
    version: int
    alias: str | None


class ModelInfo(BaseModel):
    """A model that is served: its task, its size, its labels if it has any, where it comes from.

    `sha256` is that of the folder's list of checksums, which no other contents have; None of a
    folder without one. `registered` is None of a model that was given as a folder, `lineage` where
    neither the folder nor the registry says anything: run, training data, code, metrics.
    """

    task: str | None
    labels: list[str]
    heads: list[str]
    sha256: str | None
    registered: RegisteredVersion | None
    lineage: Lineage | None
    precision: Precision | Products
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_input_length: int


class Info(BaseModel):
    """What is loaded, and within which limits it may be asked; with the fields that TEI has.

    Those are of the model that answers where none is named, and empty where one has to be.
    """

    model_config = ConfigDict(protected_namespaces=())

    version: str
    models: dict[str, ModelInfo]
    limits: Limits
    model_id: str | None
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, dict[str, str]]
    max_input_length: int | None
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool


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
        engine = self._engine
        models = {name: _described(each) for name, each in engine.models.items()}
        only = next(iter(models)) if len(models) == 1 else None
        known = models[only] if only is not None else None
        limits = engine.limits
        return Info(
            version=version("bertline"),
            models=models,
            limits=limits,
            model_id=only,
            model_sha=known.sha256 if known is not None else None,
            model_dtype=known.precision if known is not None else "float32",
            model_type={"embedding": {"pooling": engine.models[only].sentence_pooling.pooling}}
            if only is not None and known is not None and known.task is None
            else {},
            max_input_length=known.max_input_length if known is not None else None,
            max_batch_tokens=limits.max_batch_tokens,
            max_client_batch_size=limits.max_items,
            auto_truncate=False,
        )


def _described(model: ServedModel) -> ModelInfo:
    config, task, pointer = model.config, model.task, model.pointer
    checksums = model.folder / CHECKSUMS
    return ModelInfo(
        task=model.task_name,
        labels=list(task.labels) if task is not None else [],
        heads=list(model.model.heads),
        sha256=file_sha256(checksums) if checksums.is_file() else None,
        registered=RegisteredVersion.model_validate(pointer, from_attributes=True)
        if pointer is not None
        else None,
        lineage=model.lineage,
        precision=model.precision,
        num_hidden_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_input_length=task.max_length if task is not None else config.max_position_embeddings,
    )

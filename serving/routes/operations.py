"""Routes for operators: health, readiness, metrics, the loaded models and the limits."""

from importlib.metadata import version
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from bert_core.example import ModelExample
from bert_core.lineage import Lineage
from bert_core.quantization import Precision
from bert_core.tasks.classification import Classification
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.text_embedding import TextEmbedding
from serving.engine import Engine
from serving.limits import Limits
from serving.models import (
    ENTAILMENT,
    MASKED_TOKEN,
    NEXT_SENTENCE,
    RERANKING,
    Products,
    ServedModel,
    is_embedder,
    is_reranker,
)
from serving.rollout.admin import told_source
from serving.rollout.traffic import Variant, source_of
from serving.routes.json_routes import Routes

ReadsPairs = bool | Literal["either"]

Shape = TypeVar("Shape", bound=BaseModel)


class State(BaseModel):
    """The state of the server."""

    status: str


class RegisteredVersion(BaseModel):
    """A model's version in MLflow's registry.

    `alias` is None where the version was asked for by its number; an alias may have moved since.
    """

    name: str
    version: int
    alias: str | None


class RefusedVersion(BaseModel):
    """The version of the address that was refused: why, when (Unix seconds).

    `version` is null where MLflow did not say which one it is.
    """

    version: int | None
    reason: str
    at: float


class RegistryState(BaseModel):
    """When MLflow was asked last (Unix seconds), and what was wrong, null where it answered."""

    asked_at: float
    fault: str | None


class VariantInfo(BaseModel):
    """A canary or shadow of a model, and its share of the model's requests, 0 to 1.

    `model` is its address at MLflow, or the name of its folder.
    """

    model: str
    version: str | None
    share: float


class ModelInfo(BaseModel):
    """A model that is served: its task, its size, its labels if it has any, where it comes from.

    `sha256` is that of the folder's list of checksums, which no other contents have; None of a
    folder without one. `registered` is None of a model that was given as a folder, `lineage` where
    neither the folder nor the registry says anything: run, training data, code, metrics. Of a model
    that follows its address at MLflow `refused` is the version that was refused, if there is
    one, and `registry` what became of the last question. `routes` are those of our own that it
    answers at. `reads_pairs` is whether it classifies pairs, not single texts: `either` where its
    folder does not say it, None of one that does not classify. `canary` answers a share of its
    requests, `shadow` is asked them too and only compared; None where there is none. `example` is
    that of the folder, a request and its answer, and `thresholds` are the probabilities above which
    labels are given, where they are other than 0.5; both are left out where there are none.
    """

    task: str | None
    routes: list[str]
    reads_pairs: ReadsPairs | None
    labels: list[str]
    heads: list[str]
    sha256: str | None
    version: str | None
    registered: RegisteredVersion | None
    refused: RefusedVersion | None
    registry: RegistryState | None
    canary: VariantInfo | None
    shadow: VariantInfo | None
    lineage: Lineage | None
    example: ModelExample | None = None
    thresholds: dict[str, float] = {}
    precision: Precision | Products
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_input_length: int

    @model_serializer(mode="wrap")
    def _without_what_is_missing(self, handler: SerializerFunctionWrapHandler):  # noqa: ANN202 - a type would replace the schema
        fields = handler(self)
        for name in ("example", "thresholds"):
            if not getattr(self, name):
                del fields[name]
        return fields


class Info(BaseModel):
    """The loaded models and the limits, with the fields that TEI has.

    Those are of the model that answers where none is named, and empty where one has to be. What TEI
    limits or counts and this server does not is null.
    """

    model_config = ConfigDict(protected_namespaces=())

    version: str
    models: dict[str, ModelInfo]
    limits: Limits
    model_id: str | None
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, dict[str, Any]]
    max_input_length: int | None
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    max_concurrent_requests: int | None = None
    max_batch_requests: int | None = None
    tokenization_workers: int | None = None
    sha: str | None = None
    docker_label: str | None = None


class OperationRoutes(Routes):
    """Health, readiness, metrics, the loaded models and the limits."""

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
        """The metrics, for Prometheus."""
        return Response(self._engine.metrics.text, media_type=CONTENT_TYPE_LATEST)

    async def info(self) -> Info:
        """Shows the loaded models and the limits."""
        engine = self._engine
        models = {name: _described(engine, name) for name in engine.models}
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
            model_type=_tei_type(engine.models[only]) if only is not None else {},
            max_input_length=_tei_max_length(engine.models[only]) if only is not None else None,
            max_batch_tokens=limits.max_batch_tokens,
            max_client_batch_size=limits.max_items,
            auto_truncate=False,
        )


def _described(engine: Engine, name: str) -> ModelInfo:
    model, state = engine.models[name], engine.slots.get((None, name))
    config, task = model.config, model.task
    return ModelInfo(
        task=model.task_name,
        routes=routes_of(model),
        reads_pairs=reads_pairs(model),
        labels=list(task.labels) if task is not None else [],
        heads=list(model.model.heads),
        sha256=model.sha256,
        version=model.version,
        registered=_as(RegisteredVersion, model.pointer),
        refused=_as(RefusedVersion, state and state.refused),
        registry=_as(RegistryState, state and state.registry),
        canary=_variant(engine.traffic.variant(name, "canary")),
        shadow=_variant(engine.traffic.variant(name, "shadow")),
        lineage=model.lineage,
        example=model.example,
        thresholds=task.thresholds if isinstance(task, Classification) else {},
        precision=model.precision,
        num_hidden_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_input_length=task.max_length if task is not None else config.max_position_embeddings,
    )


def _tei_max_length(model: ServedModel) -> int:
    """How many tokens of a text TEI's routes read; of vectors the folder may say fewer."""
    task, positions = model.task, model.config.max_position_embeddings
    if task is not None and not isinstance(task, TextEmbedding):
        return task.max_length
    is_sparse = is_embedder(model, "sparse")
    pooling = model.sparse_pooling if is_sparse else model.sentence_pooling
    return min(pooling.max_length or positions, positions)


def _tei_type(model: ServedModel) -> dict[str, dict[str, Any]]:
    """A reranker, a classifier, or an embedding, as TEI says it; empty for what it has none of."""
    task = model.task
    if is_embedder(model, "sparse"):
        return {"embedding": {"pooling": "splade"}}
    if task is None or isinstance(task, TextEmbedding):
        return {"embedding": {"pooling": model.sentence_pooling.pooling}}
    is_ranking = is_reranker(model)
    if not is_ranking and not isinstance(task, Classification):
        return {}
    labels = task.labels or ("LABEL_0",)
    return {
        "reranker" if is_ranking else "classifier": {
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    }


def _variant(variant: Variant | None) -> VariantInfo | None:
    if variant is None:
        return None
    model = told_source(source_of(variant.model))
    return VariantInfo(model=model, version=variant.model.version, share=variant.share)


def _as(shape: type[Shape], found: object) -> Shape | None:
    return None if found is None else shape.model_validate(found, from_attributes=True)


def routes_of(model: ServedModel) -> list[str]:
    """The paths of our own routes that a model answers at."""
    task = model.task
    can = {
        "/v1/classify": isinstance(task, Classification),
        "/v1/zero-shot": ENTAILMENT.of(model),
        "/v1/ner": isinstance(task, Tagging),
        "/v1/qa": isinstance(task, QuestionAnswering),
        "/v1/rerank": RERANKING.of(model),
        "/v1/fill-mask": MASKED_TOKEN.of(model),
        "/v1/next-sentence": NEXT_SENTENCE.of(model),
        "/v1/pseudo-perplexity": MASKED_TOKEN.of(model),
        "/v1/features": True,
        "/v1/similarity": True,
        "/v1/explain": True,
        "/v1/tokenize": True,
        "/v1/decode": True,
    }
    return [route for route, is_able in can.items() if is_able]


def reads_pairs(model: ServedModel) -> ReadsPairs | None:
    """Whether a model classifies pairs, not single texts, or either, as the request has it.

    None of one that does not classify.
    """
    if not isinstance(model.task, Classification):
        return None
    known = model.task.reads_pairs
    return "either" if known is None else known

"""Routes of OpenAI: /v1/embeddings and /v1/models."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from serving.engine import Engine
from serving.errors import RequestError, foreign_refusals
from serving.routes.json_routes import answered
from serving.routes.tasks import base64_of
from serving.schemas.fields import InputText, ListOf, example
from serving.schemas.texts import TokenId
from serving.sentence_vectors import Wanted, sentence_vectors
from serving.validation import texts_of


class EmbeddingsRequest(BaseModel):
    """Texts, or their tokens, whose vectors are wanted."""

    model_config = ConfigDict(extra="forbid", strict=True) | example(
        model="minilm", input=["A cat sleeps.", "The bank raised its rates."]
    )

    input: (
        InputText
        | Annotated[ListOf[InputText], Field(min_length=1)]
        | Annotated[ListOf[TokenId], Field(min_length=1)]
        | Annotated[ListOf[Annotated[ListOf[TokenId], Field(min_length=1)]], Field(min_length=1)]
    )
    model: str
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = Field(default=None, description="accepted, and not used")


class Embedding(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """The tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The vectors of all inputs, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "bertline"


class Models(BaseModel):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[Model]


class OpenAIError(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIRefusal(BaseModel):
    """The envelope of an error."""

    error: OpenAIError


class OpenAIRoutes:
    """The handlers, over the models of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["OpenAI"])
        router.add_api_route(
            "/v1/embeddings",
            self.embeddings,
            methods=["POST"],
            response_model=EmbeddingsAnswer,
            responses=foreign_refusals(OpenAIRefusal, (400, 404, 408, 413, 415, 429, 500, 503)),
        )
        router.add_api_route("/v1/models", self.models, methods=["GET"], response_model=Models)
        router.add_api_route(
            "/v1/models/{name}",
            self.model,
            methods=["GET"],
            response_model=Model,
            responses=foreign_refusals(OpenAIRefusal, (404,)),
        )
        return router

    async def embeddings(self, request: EmbeddingsRequest) -> Response:
        """One vector of each input."""
        model = self._engine.traffic.find_embedder(request.model)
        most = self._engine.limits.max_request_tokens
        inputs = replace(texts_of(model, request.input, "input", most), if_too_long="shorten it")
        wanted = Wanted(dimensions=request.dimensions)
        found = await sentence_vectors(self._engine, model, inputs, wanted)
        num_tokens = sum(found.num_tokens)

        def build() -> dict[str, Any]:
            coded = found.vectors
            if request.encoding_format == "base64":
                coded = [base64_of(vector) for vector in found.vectors]
            return {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": vector}
                    for index, vector in enumerate(coded)
                ],
                "model": model.name,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            }

        return await answered(self._engine, build, found.headers)

    async def models(self) -> Models:
        """All models that are served."""
        return Models(data=[self._described(name) for name in self._engine.models])

    async def model(self, name: str) -> Model:
        """One of the models that are served."""
        if name not in self._engine.models:
            raise RequestError(
                404, "Unknown model", f"no model {name!r}", field="model", remedy="see /v1/models"
            )
        return self._described(name)

    def _described(self, name: str) -> Model:
        return Model(id=name, created=self._engine.models[name].created)

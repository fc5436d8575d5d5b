"""Routes of other servers of embeddings: Text Embeddings Inference (TEI), and OpenAI's.

TEI has /embed, /embed_all, /predict and /similarity; OpenAI /v1/embeddings and /v1/models. They
answer with one vector of each text, made as its model folder says. Shapes: N texts, D dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field

from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice
from bert_core.features.sentence_pooling import SentencePooling
from bert_core.interface import OverflowOrError, ScoredLabel
from bert_core.tasks.answers import LabelScores
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.task import FloatArray
from serving.engine import Engine
from serving.errors import RequestError, foreign_refusals
from serving.models import ServedModel
from serving.routes.json_routes import Routes, answered, read_headers, refuse_unknown_parameters
from serving.routes.tasks import base64_of
from serving.schemas import Closed, InputText, ListOf, Name, TokenId, example
from serving.validation import Inputs, check_pairs, cutting, texts_or_ids


@dataclass(frozen=True)
class Wanted:
    """How texts are to be read, and their vectors to be written.

    - `normalize`, whether vectors get the length 1; None leaves it to the folder
    - `dimensions`, the first so many numbers of each, for models that were trained for it
    - `prompt_name`, which of the folder's prompts stands before each text; None is its default
    """

    normalize: bool | None = None
    dimensions: int | None = None
    overflow: OverflowOrError = "error"
    prompt_name: str | None = None


@dataclass(frozen=True)
class SentenceVectors:
    """Vectors float32 [N, D], the tokens of each text, and which of them lost some.

    Where an answer has no place for them, `headers` say what every answer of ours does.
    """

    vectors: FloatArray
    num_tokens: list[int]
    truncated: list[bool]
    headers: dict[str, str]


async def sentence_vectors(
    engine: Engine, model: ServedModel, inputs: Inputs, wanted: Wanted
) -> SentenceVectors:
    """The vector of each text.

    Raises `RequestError` for more dimensions than there are and a prompt that the folder lacks, and
    what `Engine.features` does.
    """
    pooling = model.sentence_pooling
    size = pooling.dimensions(model.config.hidden_size)
    if wanted.dimensions is not None and wanted.dimensions > size:
        detail = f"{wanted.dimensions}, and the vectors of {model.name} have {size}"
        remedy = "ask for fewer, or leave it out"
        raise RequestError(422, "Too many dimensions", detail, field="dimensions", remedy=remedy)
    normalize = pooling.normalize if wanted.normalize is None else wanted.normalize
    is_changed = wanted.dimensions is not None or bool(pooling.dense)
    choice = FeatureChoice(
        pooling=pooling.pooling,
        normalize=normalize and not is_changed,
        max_length=pooling.max_length,
    )
    inputs = with_prompt(model, inputs, wanted.prompt_name)
    found = await engine.features(model, choice, inputs, wanted.overflow)
    empty = np.empty((0, model.config.hidden_size), np.float32)
    vectors = np.concatenate([empty, *(text.vectors for text in found)])
    if is_changed:
        vectors = pooling.finish(vectors, normalize=normalize, dimensions=wanted.dimensions)
    num_tokens, truncated = [text.num_tokens for text in found], [text.truncated for text in found]
    return SentenceVectors(vectors, num_tokens, truncated, read_headers(found))


def with_prompt(
    model: ServedModel, inputs: Inputs, name: str | None, said: SentencePooling | None = None
) -> Inputs:
    """Texts with the folder's prompt of this name before each, or its default one.

    The folder's prompts are those of `said`, by default of its sentence pooling. Raises
    `RequestError` for a name that the folder does not have.
    """
    try:
        prompt = (said or model.sentence_pooling).prompt(name)
    except UserError as error:
        if name is None:
            raise
        raise RequestError(
            422,
            "Unknown prompt",
            f"{model.name} has no prompt {name}",
            field="prompt_name",
            remedy=error.remedy,
        ) from error
    if not prompt:
        return inputs
    if name is not None and any(isinstance(item, list) for item in inputs.items):
        raise RequestError(
            422,
            "Prompt before ids",
            "a prompt stands before texts, not before token ids",
            field="prompt_name",
            remedy="send texts, or begin the ids with those of the prompt",
        )
    return inputs.map(lambda item: prompt + item if isinstance(item, str) else item)


Side = Literal["Left", "left", "Right", "right"]


class TEIRequest(Closed):
    """What all of its requests have.

    Here as in the shapes of Hugging Face and OpenAI, null stands for a field that is left out.
    """

    truncate: bool | None = Field(
        default=None, description="whether a text that is too long is cut; else it is refused"
    )
    truncation_direction: Side | None = Field(
        default="Right", description="on which side it is cut"
    )


PromptName = Name | None
"""Which prompt of the model's folder stands before each text; by default the folder's own."""


class EmbedRequest(TEIRequest):
    """Texts, or their tokens, whose vectors are wanted."""

    model_config = example(inputs=["A cat sleeps.", "The bank raised its rates."])

    inputs: InputText | ListOf[InputText] | ListOf[TokenId] | ListOf[ListOf[TokenId]]
    prompt_name: PromptName = None
    normalize: bool | None = True
    dimensions: Annotated[int, Field(ge=1)] | None = None


class EmbedAllRequest(TEIRequest):
    """Texts whose tokens' vectors are wanted."""

    model_config = example(inputs="A cat sleeps.")

    inputs: InputText | ListOf[InputText]
    prompt_name: PromptName = None


class PredictRequest(TEIRequest):
    """A text, a pair of texts as a list, or a list of lists of one text or two."""

    model_config = example(
        inputs=[["A joy from start to end."], ["A film that never finds its feet."]]
    )

    inputs: (
        InputText
        | Annotated[ListOf[InputText], Field(min_length=1, max_length=2)]
        | ListOf[Annotated[ListOf[InputText], Field(min_length=1, max_length=2)]]
    )
    prompt_name: None = None
    raw_scores: bool | None = Field(default=False, description="what the model says, as it is")


class Compared(Closed):
    """A text, and those that it is compared with."""

    source_sentence: InputText
    sentences: ListOf[InputText]


class _SimilarityParameters(TEIRequest):
    prompt_name: PromptName = None


class TEISimilarityRequest(Closed):
    """Texts to be compared."""

    model_config = example(
        inputs={
            "source_sentence": "A cat sleeps.",
            "sentences": ["A kitten naps.", "The bank raised its rates."],
        }
    )

    inputs: Compared
    parameters: _SimilarityParameters | None = None


class TEIRefusal(BaseModel):
    """What went wrong."""

    error: str
    error_type: str


OR_TRUNCATE = "shorten it, or set truncate, where the route has it"
"""What clients of these routes can do about a text that is too long."""


class EmbeddingsInferenceRoutes(Routes):
    """The routes of TEI; `?model=` chooses among several models."""

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(
            tags=["Text Embeddings Inference"], dependencies=[Depends(refuse_unknown_parameters)]
        )
        for path, handler, answer in (
            ("/embed", self.embed, list[list[float]]),
            ("/embed_all", self.embed_all, list[list[list[float]]]),
            ("/predict", self.predict, list[ScoredLabel] | list[list[ScoredLabel]]),
            ("/similarity", self.similarity, list[float]),
        ):
            router.add_api_route(
                path,
                handler,
                methods=["POST"],
                response_model=answer,
                responses=foreign_refusals(
                    TEIRefusal, (400, 404, 408, 413, 415, 422, 424, 429, 503)
                ),
            )
        return router

    async def embed(self, request: EmbedRequest, model: str | None = None) -> Response:
        """One vector of each text."""
        encoder = self._engine.traffic.find_embedder(model)
        overflow = overflow_of(request)
        normalize = request.normalize is not False
        wanted = Wanted(normalize, request.dimensions, overflow, request.prompt_name)
        most = self._engine.limits.max_request_tokens
        inputs = texts_or_ids(encoder, request.inputs, "inputs", most)
        inputs = replace(inputs, if_too_long=OR_TRUNCATE)
        found = await sentence_vectors(self._engine, encoder, inputs, wanted)
        return await answered(self._engine, lambda: found.vectors, found.headers)

    async def embed_all(self, request: EmbedAllRequest, model: str | None = None) -> Response:
        """A vector of each token of each text, [CLS] and [SEP] too."""
        encoder = self._engine.traffic.find_embedder(model)
        choice = FeatureChoice(max_length=encoder.sentence_pooling.max_length)
        overflow = overflow_of(request)
        inputs = replace(Inputs.of(request.inputs), if_too_long=OR_TRUNCATE)
        inputs = with_prompt(encoder, inputs, request.prompt_name)
        found = await self._engine.token_states(encoder, choice, inputs, overflow)
        headers = read_headers(found)
        return await answered(self._engine, lambda: [text.vectors for text in found], headers)

    async def predict(self, request: PredictRequest, model: str | None = None) -> Response:
        """The labels of texts, or of pairs, with their scores."""
        served, task = self._engine.traffic.find(model, Classification)
        overflow = overflow_of(request)
        given = request.inputs
        is_many = isinstance(given, list) and not any(isinstance(entry, str) for entry in given)
        inputs = Inputs.of(given) if is_many else Inputs([given], "inputs", lambda _: "inputs")
        inputs = replace(inputs.map(_text), if_too_long=OR_TRUNCATE)
        task = task.model_copy(update={"overflow": cutting(overflow)})
        codec = LabelScores(task, "none" if request.raw_scores else None)
        check_pairs(inputs, task, served.name)
        found = await self._engine.ask(served, codec, inputs, overflow)
        headers = read_headers(found)

        def build() -> Any:  # noqa: ANN401 - any JSON
            answers = [best_labels(task, prediction.found["scores"]) for prediction in found]
            return answers if is_many else answers[0]

        return await answered(self._engine, build, headers)

    async def similarity(self, request: TEISimilarityRequest, model: str | None = None) -> Response:
        """The cosine between a text's vector and those of others."""
        encoder = self._engine.traffic.find_embedder(model)
        parameters = request.parameters
        overflow = "error" if parameters is None else overflow_of(parameters)
        wanted = Wanted(True, None, overflow, parameters and parameters.prompt_name)
        scores, headers = await similarities(self._engine, encoder, request.inputs, wanted)
        return await answered(self._engine, lambda: scores, headers)


async def similarities(
    engine: Engine, encoder: ServedModel, compared: Compared, wanted: Wanted
) -> tuple[list[float], dict[str, str]]:
    """The cosine between the source's vector and that of each sentence; headers of the answer."""
    inputs = Inputs(
        [compared.source_sentence, *compared.sentences],
        "inputs",
        lambda number: f"inputs.sentences[{number - 1}]" if number else "inputs.source_sentence",
        OR_TRUNCATE,
    )
    found = await sentence_vectors(engine, encoder, inputs, wanted)
    return np.clip(found.vectors[1:] @ found.vectors[0], -1, 1).tolist(), found.headers


def best_labels(task: Classification, scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """The labels as their model's folder has them, with their scores, best first."""
    return best_scores(task.output_names, list(scores.values()))


def best_scores(labels: Sequence[str], scores: Sequence[float]) -> list[dict[str, Any]]:
    """Labels with their scores, best first."""
    named = zip(labels, scores, strict=True)
    return [
        {"label": label, "score": score}
        for label, score in sorted(named, key=lambda pair: -pair[1])
    ]


def _text(given: object) -> Text:
    if isinstance(given, list):
        return Text(given[0], given[1] if len(given) > 1 else None, None)
    return Text(str(given), None, None)


class _Truncation(Protocol):
    truncate: bool | None
    truncation_direction: Side | None


def overflow_of(request: _Truncation) -> OverflowOrError:
    """What becomes of a text that is too long: it is refused unless it may be cut."""
    if not request.truncate:
        return "error"
    return "left" if (request.truncation_direction or "right").lower() == "left" else "right"


class EmbeddingsRequest(Closed):
    """Texts, or their tokens, whose vectors are wanted."""

    model_config = example(model="minilm", input=["A cat sleeps.", "The bank raised its rates."])

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


class OpenAIRoutes(Routes):
    """The routes of OpenAI."""

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
        inputs = replace(
            texts_or_ids(model, request.input, "input", most), if_too_long="shorten it"
        )
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

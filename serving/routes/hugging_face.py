"""Routes in the shapes of Hugging Face's task specification: /hf/{task}.

Where the specification and the hosted service differ, what the client `huggingface_hub` reads
counts. A field of the specification that cannot be honoured is refused, not ignored. `?model=`
chooses among several models.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field

from bert_core.interface import Aggregation, OverflowOrError, ScoredLabel
from bert_core.tasks.answers import BoundedQuestions, LabelScores
from bert_core.tasks.classification import Classification, ScoreFunction
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tag_schemes import OUTSIDE
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.text_tagging import TextTagging
from serving.engine import Prediction
from serving.errors import RequestError, foreign_refusals
from serving.models import MASKED_TOKEN
from serving.routes.embeddings import (
    OR_TRUNCATE,
    Compared,
    PromptName,
    Side,
    Wanted,
    best_labels,
    overflow_of,
    sentence_vectors,
    similarities,
)
from serving.routes.json_routes import Routes, answered, read_headers, refuse_unknown_parameters
from serving.routes.tasks import base64_of, fill_masks, text_or_pair, usable_aggregation
from serving.schemas import Closed, InputText, ListOf, QuestionInContext, Targets, TextPair, example
from serving.validation import Inputs, check_pairs, cutting


class HuggingFaceRequest(Closed):
    """What all requests have."""

    options: dict[str, Any] | None = Field(
        default=None, description="of the hosted service (wait_for_model …); nothing to do here"
    )


class TextClassificationParameters(Closed):
    """How scores are made, and how many are wanted."""

    function_to_apply: ScoreFunction | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None


class TextClassificationRequest(HuggingFaceRequest):
    """Texts or pairs to be classified."""

    model_config = example(inputs="A joy from start to end.", parameters={"top_k": 2})

    inputs: InputText | TextPair | ListOf[InputText | TextPair]
    parameters: TextClassificationParameters | None = None


class TokenClassificationParameters(Closed):
    """How sub-words are joined; a stride asks for windows over long texts."""

    aggregation_strategy: Aggregation | None = None
    ignore_labels: ListOf[str] | None = None
    stride: Annotated[int, Field(ge=0)] | None = None


class TokenClassificationRequest(HuggingFaceRequest):
    """Texts whose entities are wanted."""

    model_config = example(inputs="Angela Merkel took the train from Berlin to Wolfsburg.")

    inputs: InputText | ListOf[InputText]
    parameters: TokenClassificationParameters | None = None


class TaggedEntity(BaseModel):
    """An entity, or, without aggregation, a sub-word."""

    entity_group: str | None = None
    entity: str | None = None
    score: float
    word: str
    start: int
    end: int


class QuestionAnsweringParameters(Closed):
    """Which answers are wanted, and how long contexts are read."""

    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    doc_stride: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="tokens by which windows overlap, at least"
    )
    max_answer_len: Annotated[int, Field(ge=1, le=512)] | None = None
    max_seq_len: Annotated[int, Field(ge=8)] | None = None
    max_question_len: Annotated[int, Field(ge=1)] | None = None
    handle_impossible_answer: bool | None = None
    align_to_words: bool | None = None


class QuestionAnsweringRequest(HuggingFaceRequest):
    """A question to be answered from its context, or several."""

    model_config = example(
        inputs={
            "question": "Where does the Rhine rise?",
            "context": "The Rhine rises in the Swiss Alps and ends in the North Sea.",
        }
    )

    inputs: QuestionInContext | ListOf[QuestionInContext]
    parameters: QuestionAnsweringParameters | None = None


class AnswerElement(BaseModel):
    """An answer, its probability, and its characters."""

    answer: str
    score: float
    start: int
    end: int


class FeatureExtractionParameters(Closed):
    """How vectors are made; the specification has these fields beside `inputs`, clients inside."""

    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: PromptName = None


class FeatureExtractionRequest(FeatureExtractionParameters):
    """Texts whose vectors are wanted."""

    model_config = example(inputs="A cat sleeps.", normalize=True)

    inputs: InputText | ListOf[InputText]
    parameters: FeatureExtractionParameters | None = None
    options: dict[str, Any] | None = None


class FillMaskParameters(Closed):
    """How many words for each [MASK], and among which."""

    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    targets: Targets | None = None


class HuggingFaceFillMaskRequest(HuggingFaceRequest):
    """Texts with `[MASK]`."""

    model_config = example(inputs="The capital of France is [MASK].")

    inputs: InputText | ListOf[InputText]
    parameters: FillMaskParameters | None = None


class FilledElement(BaseModel):
    """A token that may stand there, and the text with it."""

    sequence: str
    score: float
    token: int
    token_str: str


class SentenceSimilarityRequest(HuggingFaceRequest):
    """Sentences to be compared with one."""

    model_config = example(
        inputs={
            "source_sentence": "A cat sleeps.",
            "sentences": ["A kitten naps.", "The bank raised its rates."],
        }
    )

    inputs: Compared
    parameters: dict[str, None] | None = None


class HuggingFaceRefusal(BaseModel):
    """What went wrong."""

    error: str


class HuggingFaceRoutes(Routes):
    """The routes of Hugging Face's tasks."""

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["Hugging Face"], dependencies=[Depends(refuse_unknown_parameters)])
        elements = list[FilledElement]
        for task, handler, answer in (
            ("text-classification", self.text_classification, list[list[ScoredLabel]]),
            (
                "token-classification",
                self.token_classification,
                list[TaggedEntity] | list[list[TaggedEntity]],
            ),
            (
                "question-answering",
                self.question_answering,
                AnswerElement | list[AnswerElement] | list[list[AnswerElement]],
            ),
            ("feature-extraction", self.feature_extraction, list[list[float]] | list[str]),
            ("fill-mask", self.fill_mask, elements | list[elements] | list[list[elements]]),
            ("sentence-similarity", self.sentence_similarity, list[float]),
        ):
            router.add_api_route(
                f"/hf/{task}",
                handler,
                methods=["POST"],
                response_model=answer,
                responses=foreign_refusals(
                    HuggingFaceRefusal, (400, 404, 408, 413, 415, 422, 429, 500, 503)
                ),
            )
        return router

    async def text_classification(
        self, request: TextClassificationRequest, model: str | None = None
    ) -> Response:
        """The labels of texts or pairs, best first: a list for each."""
        served, task = self._engine.traffic.find(model, Classification)
        inputs = replace(Inputs.of(request.inputs).map(text_or_pair), if_too_long="shorten it")
        check_pairs(inputs, task, served.name)
        task = task.model_copy(update={"overflow": cutting("error")})
        asked = request.parameters or TextClassificationParameters()
        codec = LabelScores(task, asked.function_to_apply)
        found = await self._engine.ask(served, codec, inputs, "error")
        return await self._answer(
            lambda: [
                best_labels(task, prediction.found["scores"])[: asked.top_k] for prediction in found
            ],
            found,
        )

    async def token_classification(
        self, request: TokenClassificationRequest, model: str | None = None
    ) -> Response:
        """The entities of a text, or a list of them for each of several."""
        served, task = self._engine.traffic.find(model, Tagging)
        asked = request.parameters or TokenClassificationParameters()
        ignored = {OUTSIDE} if asked.ignore_labels is None else set(asked.ignore_labels)
        if OUTSIDE in task.labels and OUTSIDE not in ignored:
            raise RequestError(
                422,
                "Wrong field",
                f"what is outside of all entities, {OUTSIDE}, is never among them",
                field="parameters.ignore_labels",
                remedy=f"have {OUTSIDE} among them",
            )
        usual = "first" if served.reads_words_in_a_row else "simple"
        aggregation = usable_aggregation(
            served, asked.aggregation_strategy or usual, "parameters.aggregation_strategy"
        )
        overflow: OverflowOrError = "error" if asked.stride is None else "window"
        most = self._engine.limits.max_request_tokens
        codec = TextTagging(task, aggregation, cutting(overflow), most)
        inputs = replace(Inputs.of(request.inputs), if_too_long="shorten it, or give a stride")
        found = await self._engine.ask(served, codec, inputs, overflow)
        label = "entity" if aggregation == "none" else "entity_group"

        def build() -> Any:  # noqa: ANN401 - any JSON
            results = [
                [
                    {
                        label: entity["type"],
                        "score": entity["score"],
                        "word": entity["text"],
                        "start": entity["start"],
                        "end": entity["end"],
                    }
                    for entity in prediction.found["entities"]
                    if entity["type"] not in ignored
                ]
                for prediction in found
            ]
            return results if isinstance(request.inputs, list) else results[0]

        return await self._answer(build, found)

    async def question_answering(
        self, request: QuestionAnsweringRequest, model: str | None = None
    ) -> Response:
        """The best answer of a context, or as many as `top_k`; long contexts have windows."""
        served, task = self._engine.traffic.find(model, QuestionAnswering)
        asked = request.parameters or QuestionAnsweringParameters()
        positions = served.config.max_position_embeddings
        codec = _questions_as_asked(task, asked, positions, self._engine.limits.max_request_tokens)
        inputs = Inputs.of(request.inputs).map(
            lambda inputs: Question("", inputs.question, inputs.context, None)
        )
        found = await self._engine.ask(served, codec, inputs, "window")

        def build() -> Any:  # noqa: ANN401 - any JSON
            results = []
            for prediction in found:
                answers = [
                    {
                        "answer": answer["text"],
                        "score": answer["probability"],
                        "start": answer["start"],
                        "end": answer["end"],
                    }
                    for answer in prediction.found["n_best"][: asked.top_k or 1]
                ]
                results.append(answers[0] if asked.top_k in (None, 1) else answers)
            return results if isinstance(request.inputs, list) else results[0]

        return await self._answer(build, found)

    async def feature_extraction(
        self, request: FeatureExtractionRequest, model: str | None = None
    ) -> Response:
        """One vector of each text; where a field is given twice, that of `parameters` counts."""
        encoder = self._engine.traffic.find_embedder(model)
        fields = request
        if request.parameters is not None:
            fields = request.model_copy(update=request.parameters.model_dump(exclude_none=True))
        overflow = overflow_of(fields)
        wanted = Wanted(fields.normalize, fields.dimensions, overflow, fields.prompt_name)
        inputs = replace(Inputs.of(request.inputs), if_too_long=OR_TRUNCATE)
        found = await sentence_vectors(self._engine, encoder, inputs, wanted)

        def build() -> Any:  # noqa: ANN401 - any JSON
            if fields.encoding_format == "base64":
                return [base64_of(vector) for vector in found.vectors]
            return found.vectors

        return await answered(self._engine, build, found.headers)

    async def fill_mask(
        self, request: HuggingFaceFillMaskRequest, model: str | None = None
    ) -> Response:
        """Likely words for the [MASK] of a text: a list for each, where there are several."""
        served = self._engine.traffic.find_able(model, MASKED_TOKEN)
        inputs = replace(Inputs.of(request.inputs), if_too_long="shorten it")
        asked = request.parameters or FillMaskParameters()
        wanted = asked.top_k or 5, asked.targets
        found = await fill_masks(self._engine, served, inputs, *wanted, "error")

        def build() -> Any:  # noqa: ANN401 - any JSON
            results = []
            for prediction in found:
                masks = [
                    [
                        {
                            "score": candidate["score"],
                            "token": candidate["id"],
                            "token_str": candidate["token"],
                            "sequence": candidate["sequence"],
                        }
                        for candidate in mask["candidates"]
                    ]
                    for mask in prediction.found["masks"]
                ]
                results.append(masks[0] if len(masks) == 1 else masks)
            return results if isinstance(request.inputs, list) else results[0]

        return await self._answer(build, found)

    async def sentence_similarity(
        self, request: SentenceSimilarityRequest, model: str | None = None
    ) -> Response:
        """The cosine between a sentence's vector and those of others."""
        encoder = self._engine.traffic.find_embedder(model)
        wanted = Wanted(normalize=True)
        scores, headers = await similarities(self._engine, encoder, request.inputs, wanted)
        return await answered(self._engine, lambda: scores, headers)

    async def _answer(self, build: Callable[[], Any], found: list[Prediction]) -> Response:
        return await answered(self._engine, build, read_headers(found))


_MOST_SHARED = 128
"""Tokens that windows share where a request sets their length alone, or a third of a window."""


def _questions_as_asked(
    task: QuestionAnswering, asked: QuestionAnsweringParameters, positions: int, max_tokens: int
) -> BoundedQuestions:
    """The task with what a request changes; rows no longer than the encoder's positions."""
    max_length = min(asked.max_seq_len or task.max_length, positions)
    max_query_length = asked.max_question_len or task.max_query_length
    changes: dict[str, Any] = {
        "overflow": "window",
        "max_length": max_length,
        "max_query_length": max_query_length,
        "n_best": max(task.n_best, asked.top_k or 1),
        # In the task's own way a model may say that there is none; clients ask for it by name.
        "no_answer": bool(asked.handle_impossible_answer),
    }
    if asked.max_answer_len is not None:
        changes["max_answer_length"] = asked.max_answer_len
    if asked.align_to_words is not None:
        changes["align_to_words"] = asked.align_to_words
    overlap = asked.doc_stride
    if overlap is None and asked.max_seq_len is not None:
        overlap = min(max_length // 3, _MOST_SHARED)
    return BoundedQuestions(task.model_copy(update=changes), max_tokens, overlap)

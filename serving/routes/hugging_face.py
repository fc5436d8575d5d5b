"""Routes in the shapes of Hugging Face's task specification: /hf/{task}.

Where the specification and the hosted service differ, what the client `huggingface_hub` reads
counts. `?model=` chooses among several models.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Depends, Response

from bert_core.masked_language_model import FillMask, target_ids
from bert_core.tasks.answers import BoundedQuestions, LabelScores
from bert_core.tasks.classification import Classification
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tag_schemes import OUTSIDE
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.text_tagging import TextTagging
from serving.engine import Engine, Prediction, check_pairs, cutting
from serving.inputs import Inputs
from serving.long_answers import answered
from serving.problems import RequestError, foreign_refusals
from serving.routes.embeddings_inference import OR_TRUNCATE, best_labels, similarities
from serving.routes.pretrained import check_masks
from serving.routes.query_parameters import refuse_unknown_parameters
from serving.routes.tasks import base64_of, text_of, usable_aggregation
from serving.schemas.fields import OverflowOrError
from serving.schemas.hugging_face import (
    AnswerElement,
    FeatureExtractionRequest,
    FilledElement,
    FillMaskParameters,
    FillMaskRequest,
    LabelScore,
    QuestionAnsweringParameters,
    QuestionAnsweringRequest,
    Refusal,
    SentenceSimilarityRequest,
    TaggedEntity,
    TextClassificationParameters,
    TextClassificationRequest,
    TokenClassificationParameters,
    TokenClassificationRequest,
)
from serving.sentence_vectors import Wanted, read_headers, sentence_vectors


class HuggingFaceRoutes:
    """The handlers, over the models of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["Hugging Face"], dependencies=[Depends(refuse_unknown_parameters)])
        elements = list[FilledElement]
        for task, handler, answer in (
            ("text-classification", self.text_classification, list[list[LabelScore]]),
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
                responses=foreign_refusals(Refusal, (400, 404, 408, 413, 415, 422, 429, 500, 503)),
            )
        return router

    async def text_classification(
        self, request: TextClassificationRequest, model: str | None = None
    ) -> Response:
        """The labels of texts or pairs, best first: a list for each."""
        served, task = self._engine.traffic.find(model, Classification)
        inputs = replace(Inputs.of(request.inputs).map(text_of), if_too_long="shorten it")
        check_pairs(inputs, task, served.name)
        task = task.model_copy(update={"overflow": cutting("error")})
        asked = request.parameters or TextClassificationParameters()
        codec = LabelScores(task, asked.function_to_apply)
        found = await self._engine.ask(served, codec, inputs, "error")
        return await self._answer(
            lambda: [best_labels(task, each.found["scores"])[: asked.top_k] for each in found],
            found,
        )

    async def token_classification(
        self, request: TokenClassificationRequest, model: str | None = None
    ) -> Response:
        """The entities of a text, or a list of them for each of several."""
        served, task = self._engine.traffic.find(model, Tagging)
        asked = request.parameters or TokenClassificationParameters()
        ignored = {OUTSIDE} if asked.ignore_labels is None else set(asked.ignore_labels)
        if OUTSIDE not in ignored:
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
                    for entity in each.found["entities"]
                    if entity["type"] not in ignored
                ]
                for each in found
            ]
            return results if isinstance(request.inputs, list) else results[0]

        return await self._answer(build, found)

    async def question_answering(
        self, request: QuestionAnsweringRequest, model: str | None = None
    ) -> Response:
        """The best answer of a context, or as many as `top_k`; long contexts have windows."""
        served, task = self._engine.traffic.find(model, QuestionAnswering)
        asked = request.parameters or QuestionAnsweringParameters()
        changed = _questions_as_asked(task, asked, served.config.max_position_embeddings)
        codec = BoundedQuestions(changed, self._engine.limits.max_request_tokens)
        inputs = Inputs.of(request.inputs).map(
            lambda each: Question("", each.question, each.context, None)
        )
        found = await self._engine.ask(served, codec, inputs, "window")

        def build() -> Any:  # noqa: ANN401 - any JSON
            results = []
            for each in found:
                answers = [
                    {
                        "answer": answer["text"],
                        "score": answer["probability"],
                        "start": answer["start"],
                        "end": answer["end"],
                    }
                    for answer in each.found["n_best"][: asked.top_k or 1]
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
        overflow: OverflowOrError = "error"
        if fields.truncate:
            is_left = (fields.truncation_direction or "right").lower() == "left"
            overflow = "left" if is_left else "right"
        wanted = Wanted(fields.normalize, fields.dimensions, overflow, fields.prompt_name)
        inputs = replace(Inputs.of(request.inputs), if_too_long=OR_TRUNCATE)
        found = await sentence_vectors(self._engine, encoder, inputs, wanted)

        def build() -> Any:  # noqa: ANN401 - any JSON
            if fields.encoding_format == "base64":
                return [base64_of(each) for each in found.vectors]
            return found.vectors

        return await answered(self._engine, build, found.headers)

    async def fill_mask(self, request: FillMaskRequest, model: str | None = None) -> Response:
        """Likely words for the [MASK] of a text: a list for each, where there are several."""
        served = self._engine.traffic.find_with_head(model, "masked_token")
        inputs = replace(Inputs.of(request.inputs), if_too_long="shorten it")
        asked = request.parameters or FillMaskParameters()
        check_masks(inputs, asked.top_k or 5, self._engine.limits)
        targets = None if asked.targets is None else target_ids(served.tokenizer, asked.targets)
        codec = FillMask(
            served.tokenizer,
            served.config.max_position_embeddings,
            asked.top_k or 5,
            targets,
            cutting("error"),
        )
        found = await self._engine.ask(served, codec, inputs, "error", served.masked_token_work)

        def build() -> Any:  # noqa: ANN401 - any JSON
            results = []
            for each in found:
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
                    for mask in each.found["masks"]
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
        num_tokens = [each.num_tokens for each in found]
        headers = read_headers(num_tokens, [each.truncated for each in found])
        return await answered(self._engine, build, headers)


def _questions_as_asked(
    task: QuestionAnswering, asked: QuestionAnsweringParameters, longest: int
) -> QuestionAnswering:
    """The task with what a request changes; rows no longer than the encoder's positions."""
    max_length = min(asked.max_seq_len or task.max_length, longest)
    max_query_length = asked.max_question_len or task.max_query_length
    changes: dict[str, Any] = {
        "overflow": "window",
        "max_length": max_length,
        "max_query_length": max_query_length,
        "n_best": max(task.n_best, asked.top_k or 1),
        # In the task's own way a model may say that there is none; clients ask for it by name.
        "no_answer": bool(asked.handle_impossible_answer),
    }
    if asked.doc_stride is not None:
        changes["stride"] = max(1, max_length - max_query_length - 3 - asked.doc_stride)
    if asked.max_answer_len is not None:
        changes["max_answer_length"] = asked.max_answer_len
    if asked.align_to_words is not None:
        changes["align_to_words"] = asked.align_to_words
    return task.model_copy(update=changes)

"""The route of sparse vectors, TEI's: the weights of words that a text is about (SPLADE)."""

from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from bert_core.features.extractor import FeatureChoice
from bert_core.tasks.task import FloatArray
from serving.errors import foreign_refusals
from serving.models import SPARSE, WORDS
from serving.routes.embeddings import (
    OR_TRUNCATE,
    PromptName,
    TEIRefusal,
    TEIRequest,
    overflow_of,
    with_prompt,
)
from serving.routes.json_routes import Routes, answered, read_headers, refuse_unknown_parameters
from serving.schemas import InputText, ListOf, TokenId, example
from serving.validation import check_numbers, texts_or_ids

_NUMBERS_OF_A_WORD = 8
"""A word with its weight takes as much memory as so many numbers."""


class EmbedSparseRequest(TEIRequest):
    """Texts, or their tokens, whose words are to be weighed."""

    model_config = example(inputs=["A cat sleeps.", "The bank raised its rates."])

    inputs: InputText | ListOf[InputText] | ListOf[TokenId] | ListOf[ListOf[TokenId]]
    prompt_name: PromptName = None


class SparseValue(BaseModel):
    """The number of a word in the vocabulary, and its weight."""

    index: int
    value: float


class SparseEmbeddingRoutes(Routes):
    """The route of TEI; `?model=` chooses among several models."""

    @property
    def router(self) -> APIRouter:
        """The route under its path."""
        router = APIRouter(
            tags=["Text Embeddings Inference"], dependencies=[Depends(refuse_unknown_parameters)]
        )
        router.add_api_route(
            *("/embed_sparse", self.embed_sparse),
            methods=["POST"],
            response_model=list[list[SparseValue]],
            responses=foreign_refusals(TEIRefusal, (400, 404, 408, 413, 415, 422, 424, 429, 503)),
        )
        return router

    async def embed_sparse(self, request: EmbedSparseRequest, model: str | None = None) -> Response:
        """The words that each text is about, with their weights, by number."""
        served = self._engine.traffic.find_able(model, WORDS, better=SPARSE)
        most = self._engine.limits.max_request_tokens
        inputs = texts_or_ids(served, request.inputs, "inputs", most)
        inputs = replace(inputs, if_too_long=OR_TRUNCATE)
        said = served.sparse_pooling
        inputs = with_prompt(served, inputs, request.prompt_name, said)
        choice = FeatureChoice(pooling="mean", max_length=said.max_length)
        found = await self._engine.word_weights(served, choice, inputs, overflow_of(request))
        # An encoder that was not trained for it gives a weight to half of the vocabulary.
        num_words = sum(int(np.count_nonzero(text.vectors)) for text in found)
        check_numbers(num_words, _NUMBERS_OF_A_WORD, inputs.field, self._engine.limits)

        def build() -> Any:  # noqa: ANN401 - any JSON
            return [_values(text.vectors[0]) for text in found]

        return await answered(self._engine, build, read_headers(found))


def _values(weights: FloatArray) -> list[dict[str, Any]]:
    (words,) = np.nonzero(weights)
    pairs = zip(words.tolist(), weights[words].tolist(), strict=True)
    return [{"index": index, "value": value} for index, value in pairs]

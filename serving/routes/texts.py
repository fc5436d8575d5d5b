"""Routes about texts: how alike they are, their tokens, and back."""

import numpy as np
from fastapi import APIRouter, Response
from tokenizers import Encoding

from bert_core.features.extractor import FeatureChoice
from bert_core.model.strategies import find_strategy
from serving.engine import Engine
from serving.inputs import Inputs
from serving.long_answers import answered
from serving.routes.own import own_router
from serving.schemas.fields import Answer
from serving.schemas.texts import (
    DecodeAnswer,
    DecodeRequest,
    Similarity,
    SimilarityAnswer,
    SimilarityRequest,
    Token,
    TokenizeAnswer,
    TokenizeRequest,
    Tokens,
)
from serving.sentence_vectors import check_ids


class TextRoutes:
    """The handlers, over the models of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        return own_router(
            "texts",
            {
                "/v1/similarity": (self.similarity, SimilarityAnswer),
                "/v1/tokenize": (self.tokenize, TokenizeAnswer),
                "/v1/decode": (self.decode, DecodeAnswer),
            },
        )

    async def similarity(self, request: SimilarityRequest) -> Response:
        """Compares texts with one: the cosine of their vectors."""
        model = self._engine.traffic.find_encoder(request.model)
        choice = FeatureChoice(
            strategy=find_strategy(request.strategy), pooling=request.pooling, normalize=True
        )
        inputs = Inputs(
            [request.source, *request.inputs],
            lambda number: f"inputs[{number - 1}]" if number else "source",
        )
        found = await self._engine.features(model, choice, inputs, request.overflow)
        source, *others = found
        vector = source.vectors[0]
        results = [
            Similarity(
                n_tokens=each.num_tokens,
                truncated=each.truncated,
                score=float(np.clip(np.dot(vector, each.vectors[0]), -1, 1)),
            )
            for each in others
        ]
        read = Answer(n_tokens=source.num_tokens, truncated=source.truncated)
        answer = SimilarityAnswer(
            model=model.name, version=model.version, source=read, results=results
        )
        return await answered(self._engine, lambda: answer)

    async def tokenize(self, request: TokenizeRequest) -> Response:
        """Cuts texts into the tokens that a model reads."""
        model = self._engine.traffic.find_encoder(request.model)
        inputs = Inputs.of(request.inputs)
        encodings = await self._engine.cut(model, inputs, request.add_special_tokens)

        def build() -> TokenizeAnswer:
            results = [Tokens(n_tokens=len(each), tokens=tokens_of(each)) for each in encodings]
            return TokenizeAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

    async def decode(self, request: DecodeRequest) -> Response:
        """Makes texts of tokens' ids."""
        model = self._engine.traffic.find_encoder(request.model)
        lists, name = [each for each in request.ids if isinstance(each, list)], "ids[{0}][{1}]"
        if not lists:  # those of one text
            lists, name = [[each for each in request.ids if isinstance(each, int)]], "ids[{1}]"
        most = self._engine.limits.max_request_tokens
        check_ids(model.tokenizer, lists, most, "ids", name.format)
        texts = await self._engine.decode(
            model, Inputs.of(lists, "ids"), request.skip_special_tokens
        )
        answer = DecodeAnswer(model=model.name, version=model.version, results=texts)
        return await answered(self._engine, lambda: answer)


def tokens_of(encoding: Encoding) -> list[Token]:
    """The tokens of a text, or of a pair, whose characters are each counted in their own text."""
    # Each of these is a list that is made anew whenever it is asked for.
    columns = encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets
    return [
        Token(
            id=number,
            token=token,
            special=bool(special),
            start=None if special else start,
            end=None if special else end,
        )
        for number, token, special, (start, end) in zip(*columns, strict=True)
    ]

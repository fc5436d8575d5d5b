"""Routes about texts: how alike they are, their tokens, and back."""

import numpy as np
from fastapi import APIRouter, Response
from tokenizers import Encoding, Tokenizer

from bert_core.features.extractor import FeatureChoice
from bert_core.features.strategies import find_strategy
from serving.engine import Engine
from serving.inputs import Inputs
from serving.problems import RequestError
from serving.routes.own import answer_of, own_router
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
        return answer_of(
            SimilarityAnswer(model=model.name, version=model.version, source=read, results=results)
        )

    async def tokenize(self, request: TokenizeRequest) -> Response:
        """Cuts texts into the tokens that a model reads."""
        model = self._engine.traffic.find_encoder(request.model)
        inputs = Inputs.of(request.inputs)
        encodings = await self._engine.cut(model, inputs, request.add_special_tokens)
        results = [Tokens(n_tokens=len(each), tokens=tokens_of(each)) for each in encodings]
        return answer_of(TokenizeAnswer(model=model.name, version=model.version, results=results))

    async def decode(self, request: DecodeRequest) -> Response:
        """Makes texts of tokens' ids."""
        model = self._engine.traffic.find_encoder(request.model)
        lists, name = [each for each in request.ids if isinstance(each, list)], "ids[{0}][{1}]"
        if not lists:  # those of one text
            lists, name = [[each for each in request.ids if isinstance(each, int)]], "ids[{1}]"
        _check_ids(model.tokenizer, lists, self._engine.limits.max_request_tokens, name)
        texts = model.tokenizer.decode_batch(lists, skip_special_tokens=request.skip_special_tokens)
        return answer_of(DecodeAnswer(model=model.name, version=model.version, results=texts))


def tokens_of(encoding: Encoding) -> list[Token]:
    """The tokens of a text, or of a pair, whose characters are each counted in their own text."""
    # Each of these makes a list of all tokens when it is asked for.
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


def _check_ids(tokenizer: Tokenizer, lists: list[list[int]], most: int, name: str) -> None:
    """Raises `RequestError` for ids that are no token's, and for too many.

    `name` is where an id stands in the request, by the numbers of its list and of its place in it.
    """
    if sum(map(len, lists)) > most:
        raise RequestError(
            413,
            "Too many tokens",
            f"a request has {most} ids at most",
            field="ids",
            remedy="divide them among several requests",
        )
    size = tokenizer.get_vocab_size()
    for number, ids in enumerate(lists):
        for place, each in enumerate(ids):
            if each >= size:
                raise RequestError(
                    422,
                    "Unknown token",
                    f"{each} is no id of the {size} tokens",
                    field=name.format(number, place),
                    remedy="take ids that /v1/tokenize gives for this model",
                )

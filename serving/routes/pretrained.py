"""Routes to what pre-training taught: fill-mask, next-sentence, pseudo-perplexity."""

from functools import partial

from fastapi import APIRouter, Response

from bert_core.masked_language_model import MASK, FillMask, PseudoPerplexity, target_ids
from bert_core.tasks.classification import Classification
from serving.engine import Engine, cutting
from serving.inputs import Inputs
from serving.limits import Limits
from serving.long_answers import answered
from serving.problems import RequestError
from serving.routes.own import own_router
from serving.routes.tasks import text_of
from serving.schemas.pretrained import (
    Filled,
    FillMaskAnswer,
    FillMaskRequest,
    Judged,
    NextSentence,
    NextSentenceAnswer,
    NextSentenceRequest,
    PseudoPerplexityAnswer,
    PseudoPerplexityRequest,
)

_IS_NEXT, _NOT_NEXT = "is_next", "not_next"  # in the order of the head's outputs


class PretrainedRoutes:
    """The handlers, over the models of an engine that have the heads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        return own_router(
            "pre-training",
            {
                "/v1/fill-mask": (self.fill_mask, FillMaskAnswer),
                "/v1/next-sentence": (self.next_sentence, NextSentenceAnswer),
                "/v1/pseudo-perplexity": (self.pseudo_perplexity, PseudoPerplexityAnswer),
            },
        )

    async def fill_mask(self, request: FillMaskRequest) -> Response:
        """Finds likely words for each [MASK]."""
        model = self._engine.traffic.find_with_head(request.model, "masked_token")
        inputs = Inputs.of(request.inputs)
        check_masks(inputs, request.top_k, self._engine.limits)
        targets = None
        if request.targets is not None:
            targets = target_ids(model.tokenizer, request.targets)
        codec = FillMask(
            model.tokenizer,
            model.config.max_position_embeddings,
            request.top_k,
            targets,
            cutting(request.overflow),
        )
        found = await self._engine.ask(
            model, codec, inputs, request.overflow, model.masked_token_work
        )

        def build() -> FillMaskAnswer:
            results = [
                Filled(n_tokens=each.num_tokens, truncated=each.truncated, **each.found)
                for each in found
            ]
            return FillMaskAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

    async def next_sentence(self, request: NextSentenceRequest) -> Response:
        """Judges whether the second text of a pair follows the first."""
        model = self._engine.traffic.find_with_head(request.model, "next_sentence")
        codec = Classification(
            labels=(_IS_NEXT, _NOT_NEXT),
            second_column="text_pair",
            max_length=model.config.max_position_embeddings,
            overflow=cutting(request.overflow),
        )
        inputs = Inputs.of(request.inputs).map(text_of)
        found = await self._engine.ask(
            model, codec, inputs, request.overflow, model.next_sentence_work
        )

        def build() -> NextSentenceAnswer:
            results = [
                NextSentence(
                    n_tokens=each.num_tokens,
                    truncated=each.truncated,
                    is_next=each.found["scores"][_IS_NEXT],
                )
                for each in found
            ]
            return NextSentenceAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

    async def pseudo_perplexity(self, request: PseudoPerplexityRequest) -> Response:
        """Judges how likely texts are: each token is masked in turn."""
        model = self._engine.traffic.find_with_head(request.model, "masked_token")
        codec = PseudoPerplexity(
            model.config.max_position_embeddings,
            request.masking,
            cutting(request.overflow),
            self._engine.limits.max_request_tokens,
        )
        inputs = Inputs.of(request.inputs)
        work = partial(model.masked_token_work, only_targets=True)
        found = await self._engine.ask(model, codec, inputs, request.overflow, work)

        def build() -> PseudoPerplexityAnswer:
            results = [
                Judged(n_tokens=each.num_tokens, truncated=each.truncated, **each.found)
                for each in found
            ]
            return PseudoPerplexityAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)


def check_masks(inputs: Inputs, top_k: int, limits: Limits) -> None:
    """Raises `RequestError` for a text without [MASK], and for too long an answer.

    Each candidate for each [MASK] comes with its whole text.
    """
    size = top_k * sum(text.count(MASK) * len(text) for text in inputs.items)
    if size > limits.max_answer_characters:
        raise RequestError(
            413,
            "Too long an answer",
            f"texts with {MASK} filled have {size} characters,"
            f" and an answer has {limits.max_answer_characters} at most",
            field="inputs",
            remedy="ask for fewer candidates, fewer masks or shorter texts",
        )
    for number, text in enumerate(inputs.items):
        if MASK not in text:
            raise RequestError(
                422,
                f"No {MASK}",
                "nothing is missing in this text",
                field=inputs.name_of(number),
                remedy=f"write {MASK} where a word is missing",
            )

"""Our own routes that ask models: tasks, features and pre-training heads."""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import mul
from typing import Any

from fastapi import APIRouter, Response
from tokenizers import Tokenizer

from bert_core.features.extractor import FeatureChoice
from bert_core.interface import (
    Aggregation,
    Answer,
    Answered,
    Classified,
    Filled,
    OverflowOrError,
    Tagged,
)
from bert_core.masked_language_model import (
    MASK,
    FillMask,
    PseudoPerplexity,
    count_masks,
    target_ids,
)
from bert_core.model.strategies import find_strategy
from bert_core.tasks import answers
from bert_core.tasks.answers import BoundedQuestions, answering, classified, tagged
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray
from bert_core.tasks.text_tagging import TextTagging
from serving.engine import Engine, Prediction, TextFeatures
from serving.errors import RequestError
from serving.limits import Limits
from serving.models import MASKED_TOKEN, NEXT_SENTENCE, ServedModel
from serving.routes.json_routes import Routes, answered, own_router
from serving.schemas import (
    ClassifyAnswer,
    ClassifyRequest,
    Features,
    FeaturesAnswer,
    FeaturesRequest,
    FillMaskAnswer,
    FillMaskRequest,
    Judged,
    ModelAnswer,
    NerAnswer,
    NerRequest,
    NextSentence,
    NextSentenceAnswer,
    NextSentenceRequest,
    PseudoPerplexityAnswer,
    PseudoPerplexityRequest,
    QaAnswer,
    QaRequest,
    QuestionInContext,
    TextPair,
    UnitVector,
)
from serving.validation import Inputs, check_pairs, cutting

_IS_NEXT, _NOT_NEXT = "is_next", "not_next"  # in the order of the head's outputs


class TaskRoutes(Routes):
    """Tasks and features, of fine-tuned models; and what the heads of pre-training answer."""

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        tasks = {
            "/v1/classify": (self.classify, ClassifyAnswer),
            "/v1/ner": (self.ner, NerAnswer),
            "/v1/qa": (self.qa, QaAnswer),
            "/v1/features": (self.features, FeaturesAnswer),
        }
        pretraining = {
            "/v1/fill-mask": (self.fill_mask, FillMaskAnswer),
            "/v1/next-sentence": (self.next_sentence, NextSentenceAnswer),
            "/v1/pseudo-perplexity": (self.pseudo_perplexity, PseudoPerplexityAnswer),
        }
        return own_router({"tasks": tasks, "pre-training": pretraining})

    async def classify(self, request: ClassifyRequest) -> Response:
        """Classifies texts or pairs of texts: one label, several, or a number."""
        model, task = self._engine.traffic.find(request.model, Classification)
        inputs = Inputs.of(request.inputs).map(text_or_pair)
        check_pairs(inputs, task, model.name)
        codec = task.model_copy(update={"overflow": cutting(request.overflow)})
        found = await self._engine.ask(model, codec, inputs, request.overflow)
        read = partial(classified, top_k=request.top_k)
        return await _answered(self._engine, model, found, ClassifyAnswer, Classified, read)

    async def ner(self, request: NerRequest) -> Response:
        """Finds the entities of texts."""
        model, task = self._engine.traffic.find(request.model, Tagging)
        aggregation = usable_aggregation(model, request.aggregation, "aggregation")
        most = self._engine.limits.max_request_tokens
        codec = TextTagging(task, aggregation, cutting(request.overflow), most)
        found = await self._engine.ask(model, codec, Inputs.of(request.inputs), request.overflow)
        return await _answered(self._engine, model, found, NerAnswer, Tagged, tagged)

    async def qa(self, request: QaRequest) -> Response:
        """Finds the passages of contexts that answer questions."""
        model, task = self._engine.traffic.find(request.model, QuestionAnswering)
        asked = answering(
            task,
            overflow=cutting(request.overflow),
            top_k=request.top_k,
            max_answer_length=request.max_answer_length,
            align_to_words=request.align_to_words,
            null_threshold=request.null_threshold,
        )
        codec = BoundedQuestions(asked, self._engine.limits.max_request_tokens)
        inputs = Inputs.of(request.inputs).map(_question)
        found = await self._engine.ask(model, codec, inputs, request.overflow)
        read = partial(answers.answered, top_k=request.top_k)
        return await _answered(self._engine, model, found, QaAnswer, Answered, read)

    async def features(self, request: FeaturesRequest) -> Response:
        """Reads vectors of texts, or of their words or tokens, off the layers of an encoder."""
        model = self._engine.traffic.find_encoder(request.model)
        choice = FeatureChoice(
            strategy=find_strategy(request.strategy),
            unit=request.unit,
            pooling=request.pooling,
            normalize=request.normalize,
        )
        inputs = Inputs.of(request.inputs)
        found = await self._engine.features(model, choice, inputs, request.overflow)
        config = model.config
        size = choice.strategy.feature_size(config.num_hidden_layers, config.hidden_size)
        is_base64 = request.encoding == "base64"

        def build() -> FeaturesAnswer:
            return FeaturesAnswer(
                model=model.name,
                version=model.version,
                dimensions=size,
                results=[_features(text, is_base64=is_base64) for text in found],
            )

        return await answered(self._engine, build)

    async def fill_mask(self, request: FillMaskRequest) -> Response:
        """Finds likely words for each [MASK]."""
        model = self._engine.traffic.find_able(request.model, MASKED_TOKEN)
        inputs, asked = Inputs.of(request.inputs), (request.top_k, request.targets)
        found = await fill_masks(self._engine, model, inputs, *asked, request.overflow)
        return await _answered(self._engine, model, found, FillMaskAnswer, Filled)

    async def next_sentence(self, request: NextSentenceRequest) -> Response:
        """Judges whether the second text of a pair follows the first."""
        model = self._engine.traffic.find_able(request.model, NEXT_SENTENCE)
        codec = Classification(
            labels=(_IS_NEXT, _NOT_NEXT),
            second_column="text_pair",
            max_length=model.config.max_position_embeddings,
            overflow=cutting(request.overflow),
        )
        inputs = Inputs.of(request.inputs).map(text_or_pair)
        found = await self._engine.ask(
            model, codec, inputs, request.overflow, model.next_sentence_work
        )
        return await _answered(
            *(self._engine, model, found, NextSentenceAnswer, NextSentence),
            lambda found: {"is_next": found["scores"][_IS_NEXT]},
        )

    async def pseudo_perplexity(self, request: PseudoPerplexityRequest) -> Response:
        """Judges how likely texts are: each token is masked in turn."""
        model = self._engine.traffic.find_able(request.model, MASKED_TOKEN)
        codec = PseudoPerplexity(
            model.config.max_position_embeddings,
            request.masking,
            cutting(request.overflow),
            self._engine.limits.max_request_tokens,
        )
        inputs = Inputs.of(request.inputs)
        work = partial(model.masked_token_work, only_targets=True)
        found = await self._engine.ask(model, codec, inputs, request.overflow, work)
        return await _answered(self._engine, model, found, PseudoPerplexityAnswer, Judged)


def usable_aggregation(model: ServedModel, wanted: Aggregation, field: str) -> Aggregation:
    """The aggregation, if the model can be asked for it; raises `RequestError` if not."""
    if wanted != "first" and model.reads_words_in_a_row:
        detail = f"{model.name} was trained on the first sub-word of each word"
        raise RequestError(422, "Wrong aggregation", detail, field=field, remedy="take first")
    return wanted


def text_or_pair(given: str | TextPair) -> Text:
    """Converts a text or pair of a request to the tasks' `Text`."""
    if isinstance(given, str):
        return Text(given, None, None)
    return Text(given.text, given.text_pair, None)


def _question(given: QuestionInContext) -> Question:
    return Question("", given.question, given.context, None)


async def _answered(
    engine: Engine,
    model: ServedModel,
    found: Sequence[Prediction],
    answer: type[ModelAnswer],
    result: type[Answer],
    read: Callable[[dict[str, Any]], Mapping[str, Any]] = dict,
) -> Response:
    def build() -> ModelAnswer:
        results = [
            result(
                n_tokens=prediction.num_tokens,
                truncated=prediction.truncated,
                **read(prediction.found),
            )
            for prediction in found
        ]
        return answer.model_validate(
            {"model": model.name, "version": model.version, "results": results}
        )

    return await answered(engine, build)


def _features(found: TextFeatures, *, is_base64: bool) -> Features:
    """Features without validation, which takes long for millions of numbers."""
    vectors = [base64_of(vector) if is_base64 else vector for vector in found.vectors]
    vector = units = None
    if found.units is None:
        (vector,) = vectors
    else:
        units = [
            UnitVector.model_construct(text=text, start=start, end=end, vector=vector)
            for (text, start, end), vector in zip(found.units, vectors, strict=True)
        ]
    return Features.model_construct(
        n_tokens=found.num_tokens, truncated=found.truncated, vector=vector, units=units
    )


def base64_of(vector: FloatArray) -> str:
    """A vector as little-endian float32, in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


async def fill_masks(
    engine: Engine,
    model: ServedModel,
    inputs: Inputs,
    top_k: int,
    targets: Sequence[str] | None,
    overflow: OverflowOrError,
) -> list[Prediction]:
    """Finds likely words for each [MASK] of each text, among `targets` if there are any.

    Raises `RequestError` for a text without [MASK], and for too long an answer.
    """
    _check_masks(inputs, top_k, model.tokenizer, engine.limits)
    ids = None if targets is None else target_ids(model.tokenizer, targets)
    longest = model.config.max_position_embeddings
    codec = FillMask(model.tokenizer, longest, top_k, ids, cutting(overflow))
    return await engine.ask(model, codec, inputs, overflow, model.masked_token_work)


def _check_masks(inputs: Inputs, top_k: int, tokenizer: Tokenizer, limits: Limits) -> None:
    counts = [count_masks(text, tokenizer) for text in inputs.items]
    # Each candidate for each [MASK] comes with its whole text.
    size = top_k * sum(map(mul, counts, map(len, inputs.items)))
    if size > limits.max_answer_characters:
        detail = (
            f"texts with {MASK} filled have {size} characters,"
            f" and an answer has {limits.max_answer_characters} at most"
        )
        remedy = "ask for fewer candidates, fewer masks or shorter texts"
        raise RequestError(413, "Too long an answer", detail, field=inputs.field, remedy=remedy)
    for number, count in enumerate(counts):
        if not count:
            raise RequestError(
                422,
                f"No {MASK}",
                "nothing is missing in this text",
                field=inputs.name_of(number),
                remedy=f"write {MASK} where a word is missing",
            )

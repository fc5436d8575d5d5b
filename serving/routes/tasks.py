"""Our own routes for fine-tuned models and for features: classify, ner, qa, features."""

import base64
from typing import Any

from fastapi import APIRouter, Response

from bert_core.features.extractor import FeatureChoice
from bert_core.model.strategies import find_strategy
from bert_core.tasks import answers
from bert_core.tasks.answers import BoundedQuestions, answering, classified, tagged
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray
from bert_core.tasks.text_tagging import Aggregation, TextTagging
from serving.engine import Engine, Prediction, check_pairs, cutting
from serving.inputs import Inputs
from serving.long_answers import answered
from serving.models import ServedModel
from serving.problems import RequestError
from serving.routes.own import own_router
from serving.schemas.fields import TextPair
from serving.schemas.tasks import (
    Answered,
    Classified,
    ClassifyAnswer,
    ClassifyRequest,
    Features,
    FeaturesAnswer,
    FeaturesRequest,
    NerAnswer,
    NerRequest,
    QaAnswer,
    QaRequest,
    QuestionInContext,
    Tagged,
    UnitVector,
)
from serving.text_features import TextFeatures


class TaskRoutes:
    """The handlers, over the models of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        return own_router(
            "tasks",
            {
                "/v1/classify": (self.classify, ClassifyAnswer),
                "/v1/ner": (self.ner, NerAnswer),
                "/v1/qa": (self.qa, QaAnswer),
                "/v1/features": (self.features, FeaturesAnswer),
            },
        )

    async def classify(self, request: ClassifyRequest) -> Response:
        """Decides about texts or pairs of texts: one label, several, or a number."""
        model, task = self._engine.traffic.find(request.model, Classification)
        inputs = Inputs.of(request.inputs).map(text_of)
        check_pairs(inputs, task, model.name)
        codec = task.model_copy(update={"overflow": cutting(request.overflow)})
        found = await self._engine.ask(model, codec, inputs, request.overflow)

        def build() -> ClassifyAnswer:
            results = [
                Classified(**_read(each), **classified(each.found, request.top_k)) for each in found
            ]
            return ClassifyAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

    async def ner(self, request: NerRequest) -> Response:
        """Finds the entities of texts."""
        model, task = self._engine.traffic.find(request.model, Tagging)
        aggregation = usable_aggregation(model, request.aggregation, "aggregation")
        most = self._engine.limits.max_request_tokens
        codec = TextTagging(task, aggregation, cutting(request.overflow), most)
        found = await self._engine.ask(model, codec, Inputs.of(request.inputs), request.overflow)

        def build() -> NerAnswer:
            results = [Tagged(**_read(each), **tagged(each.found)) for each in found]
            return NerAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

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

        def build() -> QaAnswer:
            results = [
                Answered(**_read(each), **answers.answered(each.found, request.top_k))
                for each in found
            ]
            return QaAnswer(model=model.name, version=model.version, results=results)

        return await answered(self._engine, build)

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
                results=[_features(each, is_base64=is_base64) for each in found],
            )

        return await answered(self._engine, build)


def usable_aggregation(model: ServedModel, wanted: Aggregation, field: str) -> Aggregation:
    """The aggregation, if the model can be asked for it; raises `RequestError` if not."""
    if wanted != "first" and model.reads_words_in_a_row:
        raise RequestError(
            422,
            "Wrong aggregation",
            f"{model.name} was taught the first sub-words of words alone",
            field=field,
            remedy="take first",
        )
    return wanted


def text_of(given: str | TextPair) -> Text:
    """A text or pair as the tasks have it."""
    if isinstance(given, str):
        return Text(given, None, None)
    return Text(given.text, given.text_pair, None)


def _question(given: QuestionInContext) -> Question:
    return Question("", given.question, given.context, None)


def _read(prediction: Prediction) -> dict[str, Any]:
    """How much of its text an answer comes from."""
    return {"n_tokens": prediction.num_tokens, "truncated": prediction.truncated}


def _features(found: TextFeatures, *, is_base64: bool) -> Features:
    """As they are found: to check millions of numbers, each in a list, would take long."""
    vectors = [base64_of(each) if is_base64 else each for each in found.vectors]
    vector = units = None
    if found.units is None:
        (vector,) = vectors
    else:
        units = [
            UnitVector.model_construct(text=text, start=start, end=end, vector=each)
            for (text, start, end), each in zip(found.units, vectors, strict=True)
        ]
    return Features.model_construct(
        n_tokens=found.num_tokens, truncated=found.truncated, vector=vector, units=units
    )


def base64_of(vector: FloatArray) -> str:
    """A vector as little-endian float32, in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")

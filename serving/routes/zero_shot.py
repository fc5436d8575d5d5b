"""Routes of zero-shot classification: /v1/zero-shot, and Hugging Face's.

Any model of entailment can answer: of MNLI, RTE, or one whose labels say so.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from bert_core.interface import Classified, OverflowOrError, ScoredLabel
from bert_core.tasks.answers import LabelScores
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.zero_shot import PLACE, TEMPLATE, entailment_outputs, hypotheses, label_scores
from serving.engine import Prediction
from serving.errors import RequestError, foreign_refusals
from serving.models import ENTAILMENT
from serving.routes.embeddings import best_scores
from serving.routes.hugging_face import HuggingFaceRefusal, HuggingFaceRequest
from serving.routes.json_routes import (
    Routes,
    answered,
    own_router,
    read_headers,
    refuse_unknown_parameters,
)
from serving.schemas import ClassifyAnswer, Closed, InputText, ListOf, Request, example
from serving.validation import Inputs, check_item_count, cutting

Labels = Annotated[ListOf[InputText], Field(min_length=1, max_length=1000)]
Template = Annotated[InputText, Field(max_length=1000)]


class ZeroShotRequest(Request):
    """Texts to be classified by labels of any kind."""

    model_config = example(
        inputs="The striker scored twice in the second half.",
        labels=["sports", "politics", "cooking"],
    )

    inputs: InputText | ListOf[InputText]
    labels: Labels
    template: Template = Field(
        default=TEMPLATE, description=f"what is said of a text by a label, which stands at {PLACE}"
    )
    multi_label: bool = Field(
        default=False, description="whether each label is true or not by itself"
    )


class ZeroShotParameters(Closed):
    """The labels, and what they say of a text."""

    candidate_labels: Labels
    hypothesis_template: Template | None = None
    multi_label: bool | None = None


class HuggingFaceZeroShotRequest(HuggingFaceRequest):
    """A text to be classified by labels of any kind, or several."""

    model_config = example(
        inputs="The striker scored twice in the second half.",
        parameters={"candidate_labels": ["sports", "politics", "cooking"]},
    )

    inputs: InputText | ListOf[InputText]
    parameters: ZeroShotParameters


class ZeroShotRoutes(Routes):
    """The routes under their paths."""

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = own_router({"tasks": {"/v1/zero-shot": (self.zero_shot, ClassifyAnswer)}})
        router.add_api_route(
            *("/hf/zero-shot-classification", self.hugging_face),
            methods=["POST"],
            tags=["Hugging Face"],
            dependencies=[Depends(refuse_unknown_parameters)],
            response_model=list[ScoredLabel] | list[list[ScoredLabel]],
            responses=foreign_refusals(
                HuggingFaceRefusal, (400, 404, 408, 413, 415, 422, 429, 500, 503)
            ),
        )
        return router

    async def zero_shot(self, request: ZeroShotRequest) -> Response:
        """Classifies texts by labels that the model has never seen."""
        name, version, found, scores = await self._asked(
            request.model,
            Inputs.of(request.inputs),
            request.labels,
            "labels",
            request.template,
            request.overflow,
            multi_label=request.multi_label,
        )

        def build() -> ClassifyAnswer:
            results = []
            for some, texts in zip(scores, found, strict=True):
                best = best_scores(request.labels, some)
                applying = [each["label"] for each in best if each["score"] > 0.5]
                results.append(
                    Classified(
                        n_tokens=sum(text.num_tokens for text in texts),
                        truncated=any(text.truncated for text in texts),
                        label=None if request.multi_label else best[0]["label"],
                        labels=applying if request.multi_label else None,
                        scores=[ScoredLabel(**each) for each in best],
                    )
                )
            return ClassifyAnswer(model=name, version=version, results=results)

        return await answered(self._engine, build)

    async def hugging_face(
        self, request: HuggingFaceZeroShotRequest, model: str | None = None
    ) -> Response:
        """The labels of a text with their scores, best first: a list for each of several."""
        asked = request.parameters
        inputs = replace(Inputs.of(request.inputs), if_too_long="shorten it")
        _, _, found, scores = await self._asked(
            model,
            inputs,
            asked.candidate_labels,
            "parameters.candidate_labels",
            asked.hypothesis_template or TEMPLATE,
            "error",
            multi_label=bool(asked.multi_label),
        )

        def build() -> Any:  # noqa: ANN401 - any JSON
            answers = [best_scores(asked.candidate_labels, some) for some in scores]
            return answers if isinstance(request.inputs, list) else answers[0]

        headers = read_headers([text for texts in found for text in texts])
        return await answered(self._engine, build, headers)

    async def _asked(
        self,
        name: str | None,
        inputs: Inputs,
        labels: Sequence[str],
        labels_field: str,
        template: str,
        overflow: OverflowOrError,
        *,
        multi_label: bool,
    ) -> tuple[str, str | None, list[list[Prediction]], list[list[float]]]:
        """Name and version of the model; what it found of each text with each label; the scores."""
        if len({*labels}) < len(labels):
            raise RequestError(
                422,
                "A label twice",
                "labels have to differ",
                field=labels_field,
                remedy="leave the second one out",
            )
        served = self._engine.traffic.find_able(name, ENTAILMENT)
        assert isinstance(task := served.task, Classification)
        outputs = entailment_outputs(task)
        assert outputs is not None
        # Before they are made: a few numbers of each are many together.
        num_pairs, limits = len(inputs.items) * len(labels), self._engine.limits
        check_item_count(num_pairs, inputs.field, limits, "pairs of text and label")
        asked = hypotheses(labels, template)
        pairs = replace(
            inputs,
            items=[Text(text, hypothesis, None) for text in inputs.items for hypothesis in asked],
            name_of=lambda number: inputs.name_of(number // len(asked)),
        )
        task = task.model_copy(update={"overflow": cutting(overflow)})
        codec = LabelScores(task, "none")
        found = await self._engine.ask(served, codec, pairs, overflow, of_its_task=False)
        of_texts = [found[begin : begin + len(asked)] for begin in range(0, len(found), len(asked))]
        scores = [
            label_scores(
                np.array([list(each.found["scores"].values()) for each in some]),
                *outputs,
                multi_label=multi_label,
            ).tolist()
            for some in of_texts
        ]
        return served.name, served.version, of_texts, scores

"""Routes that order texts by how well they answer a query: TEI's, Cohere's and Jina's.

TEI has /rerank, Cohere and Jina /v1/rerank, Cohere /v2/rerank. All pairs of a request are computed
together. Any model of pairs with one score can answer: one of the task `rerank`, of a number, or a
cross-encoder of sentence-transformers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field

from bert_core.interface import Answer, OverflowOrError
from bert_core.tasks.answers import LabelScores
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.reranking import Reranking
from serving.engine import Prediction
from serving.errors import foreign_refusals
from serving.models import RERANKING, ServedModel
from serving.routes.embeddings import OR_TRUNCATE, TEIRefusal, TEIRequest, overflow_of
from serving.routes.json_routes import Routes, answered, read_headers, refuse_unknown_parameters
from serving.schemas import Closed, InputText, ListOf, ModelAnswer, example
from serving.validation import Inputs, cutting

_REFUSALS = (400, 404, 408, 413, 415, 422, 429, 503)


class TEIRerankRequest(TEIRequest):
    """A query, and texts to be ordered."""

    model_config = example(
        query="Where does the Rhine rise?",
        texts=["The Rhine rises in the Swiss Alps.", "A cat sleeps."],
    )

    query: InputText
    texts: Annotated[ListOf[InputText], Field(min_length=1)]
    raw_scores: bool | None = Field(default=False, description="what the model says, as it is")
    return_text: bool | None = Field(default=False, description="whether answers have the texts")


class Rank(BaseModel):
    """The number of a text, and its score."""

    index: int
    score: float
    text: str | None = None


class Document(Closed):
    """A text."""

    text: InputText


class RerankRequest(Closed):
    """A query, and documents to be ordered."""

    model_config = example(
        model="reranker",
        query="Where does the Rhine rise?",
        documents=["The Rhine rises in the Swiss Alps.", "A cat sleeps."],
        top_n=1,
    )

    query: InputText
    documents: Annotated[ListOf[InputText | Document], Field(min_length=1)]
    model: str | None = None
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="so many of the best; by default all"
    )
    return_documents: bool | None = Field(
        default=False, description="whether answers have the documents"
    )
    raw_scores: bool = Field(default=False, description="what the model says, as it is")


class RerankV2Request(Closed):
    """A query, and documents to be ordered."""

    model_config = example(
        model="reranker",
        query="Where does the Rhine rise?",
        documents=["The Rhine rises in the Swiss Alps.", "A cat sleeps."],
    )

    query: InputText
    documents: Annotated[ListOf[InputText], Field(min_length=1)]
    model: str
    top_n: Annotated[int, Field(ge=1)] | None = None


class Result(Answer):
    """The number of a document, and how relevant it is; the tokens are those of the pair."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankUsage(BaseModel):
    """The tokens that were read, the query's with each document."""

    total_tokens: int


class RerankAnswer(ModelAnswer):
    """Documents, the most relevant first."""

    id: str
    object: Literal["list"] = "list"
    results: list[Result]
    usage: RerankUsage


class RerankRefusal(BaseModel):
    """What went wrong."""

    message: str


class RerankRoutes(Routes):
    """The routes under their paths."""

    @property
    def router(self) -> APIRouter:
        """The routes under their paths."""
        router = APIRouter(tags=["rerank"])
        router.add_api_route(
            *("/rerank", self.rerank),
            methods=["POST"],
            dependencies=[Depends(refuse_unknown_parameters)],
            response_model=list[Rank],
            responses=foreign_refusals(TEIRefusal, (*_REFUSALS, 424)),
        )
        for path, handler in (("/v1/rerank", self.rerank_v1), ("/v2/rerank", self.rerank_v2)):
            router.add_api_route(
                *(path, handler),
                methods=["POST"],
                response_model=RerankAnswer,
                responses=foreign_refusals(RerankRefusal, (*_REFUSALS, 500)),
            )
        return router

    async def rerank(self, request: TEIRerankRequest, model: str | None = None) -> Response:
        """The numbers of the texts with their scores, best first."""
        served = self._engine.traffic.find_able(model, RERANKING)
        inputs = Inputs.of(request.texts, "texts").map(lambda text: Text(request.query, text, None))
        inputs = replace(inputs, if_too_long=OR_TRUNCATE)
        found = await self._scored(served, inputs, overflow_of(request), bool(request.raw_scores))

        def build() -> Any:  # noqa: ANN401 - any JSON
            return [
                {"index": index, "score": score}
                | ({"text": request.texts[index]} if request.return_text else {})
                for index, score in best_first(found)
            ]

        return await answered(self._engine, build, read_headers(found))

    async def rerank_v1(self, request: RerankRequest) -> Response:
        """The documents, the most relevant first; what is too long is cut."""
        texts = [each if isinstance(each, str) else each.text for each in request.documents]
        return await self._documents(
            request.model,
            request.query,
            texts,
            top_n=request.top_n,
            return_documents=bool(request.return_documents),
            raw_scores=request.raw_scores,
        )

    async def rerank_v2(self, request: RerankV2Request) -> Response:
        """The numbers of the documents, the most relevant first; what is too long is cut."""
        return await self._documents(
            request.model, request.query, request.documents, top_n=request.top_n
        )

    async def _documents(
        self,
        name: str | None,
        query: str,
        texts: list[str],
        *,
        top_n: int | None,
        return_documents: bool = False,
        raw_scores: bool = False,
    ) -> Response:
        served = self._engine.traffic.find_able(name, RERANKING)
        inputs = Inputs.of(texts, "documents").map(lambda text: Text(query, text, None))
        found = await self._scored(served, inputs, "right", raw_scores)

        def build() -> RerankAnswer:
            return RerankAnswer(
                id=str(uuid4()),
                model=served.name,
                version=served.version,
                results=[
                    Result(
                        index=index,
                        relevance_score=score,
                        n_tokens=found[index].num_tokens,
                        truncated=found[index].truncated,
                        document=Document(text=texts[index]) if return_documents else None,
                    )
                    for index, score in best_first(found)[:top_n]
                ],
                usage=RerankUsage(total_tokens=sum(each.num_tokens for each in found)),
            )

        return await answered(self._engine, build, read_headers(found))

    async def _scored(
        self, served: ServedModel, inputs: Inputs, overflow: OverflowOrError, raw_scores: bool
    ) -> list[Prediction]:
        """The score of each pair, 0 to 1 unless it is raw."""
        task = served.task
        assert isinstance(task, Classification | Reranking)
        if isinstance(task, Reranking):
            task = task.of_pairs
        task = task.model_copy(update={"overflow": cutting(overflow)})
        codec = LabelScores(task, "none" if raw_scores else "sigmoid")
        return await self._engine.ask(served, codec, inputs, overflow)


def best_first(found: Sequence[Prediction]) -> list[tuple[int, float]]:
    """The number and the score of each pair; of equals the first is better."""
    scores = [next(iter(prediction.found["scores"].values())) for prediction in found]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [(index, scores[index]) for index in order]

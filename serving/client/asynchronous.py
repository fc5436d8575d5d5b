"""The asynchronous client: requests to a server, with retries, for lists of any length."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, Unpack, overload

import httpx2

from bert_core.errors import UserError
from serving.client.exchange import (
    Attempts,
    Failure,
    Reply,
    Request,
    failure_of,
    info_of,
    is_healthy,
    limits_of,
    reply_of,
)
from serving.client.inquiry import Inquiry, Part
from serving.client.routes import (
    CLASSIFY,
    DECODE,
    EXPLAIN,
    FEATURES,
    FILL_MASK,
    NER,
    NEXT_SENTENCE,
    PSEUDO_PERPLEXITY,
    QA,
    RELEVANCE,
    SIMILARITY,
    TOKENIZE,
    ZERO_SHOT,
    Answered,
    AnyPair,
    AnyQuestion,
    AnyText,
    Classified,
    ClassifyOptions,
    Decoded,
    DecodeOptions,
    Explained,
    ExplainOptions,
    Features,
    FeaturesOptions,
    Filled,
    FillMaskOptions,
    Info,
    Judged,
    NerOptions,
    NextSentence,
    PseudoPerplexityOptions,
    QaOptions,
    QuestionAndContext,
    R,
    Relevance,
    RelevanceOptions,
    Route,
    Similarity,
    SimilarityOptions,
    Tagged,
    TextOptions,
    TextOrPair,
    TokenizeOptions,
    Tokens,
    ZeroShotOptions,
)
from serving.limits import Limits
from serving.schemas import TextPair

_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class ClientSettings:
    """The address of a server, the key to send, and how requests are made.

    - `timeout_seconds`: limit of each step of a request (connect, send, receive)
    - `retry_seconds`: total time in which a request that failed temporarily is retried
    - `concurrency`: number of simultaneous requests for a list

    Raises `UserError` for an invalid address or key, or a number that is too small.
    """

    address: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 60.0
    retry_seconds: float = 60.0
    concurrency: int = 4

    def __post_init__(self) -> None:
        url = self._url()
        is_server = url.scheme in ("http", "https") and url.host and (url.port or 0) < 1 << 16
        if not is_server or url.query or url.fragment:
            raise UserError(
                "invalid server address", repr(self.shown_address), "write it as http://HOST:PORT"
            )
        if self.api_key is not None and not _KEY.fullmatch(self.api_key):
            raise UserError(
                "invalid key",
                "api_key is empty or contains characters that keys do not have",
                "copy it as `python -m serving.new_key` printed it",
            )
        if self.api_key is not None and url.userinfo:
            raise UserError("two credentials", "api_key, and a user in the address", "remove one")
        for name, is_enough in (
            ("timeout_seconds", self.timeout_seconds > 0),
            ("retry_seconds", self.retry_seconds >= 0),
            ("concurrency", self.concurrency >= 1),
        ):
            if not is_enough:
                raise UserError("number too small", name, "pass a larger one")

    @property
    def shown_address(self) -> str:
        """The address without user and password."""
        return re.sub(r"(?<=//).*@", "", self.address, flags=re.DOTALL).rstrip("/")

    @property
    def for_httpx(self) -> dict[str, Any]:
        """Arguments of `httpx2.AsyncClient`."""
        shown = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"base_url": self._url(), "headers": shown | {"Accept": "application/json"}}

    def attempts(self) -> Attempts:
        """Starts the retry schedule of one request."""
        return Attempts(self.shown_address, self.timeout_seconds, self.retry_seconds)

    def _url(self) -> httpx2.URL:
        try:
            return httpx2.URL(self.address)
        except (httpx2.InvalidURL, TypeError):
            return httpx2.URL()


class AsyncClient:
    """Sends requests to a server from one `asyncio` event loop; `Client` describes the behaviour.

    Cancelling a task cancels its requests.
    """

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 60.0,
        retry_seconds: float = 60.0,
        concurrency: int = 4,
    ) -> None:
        self._settings = ClientSettings(
            address, api_key, timeout_seconds, retry_seconds, concurrency
        )
        self._http = httpx2.AsyncClient(**self._settings.for_httpx)
        self._limits: Limits | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.shown_address!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    @overload
    async def classify(
        self, inputs: TextOrPair, **options: Unpack[ClassifyOptions]
    ) -> Classified: ...
    @overload
    async def classify(
        self, inputs: list[AnyText], **options: Unpack[ClassifyOptions]
    ) -> list[Classified]: ...
    async def classify(
        self, inputs: TextOrPair | list[AnyText], **options: Unpack[ClassifyOptions]
    ) -> Classified | list[Classified]:
        """Classifies texts or pairs: one label, several labels, or a number."""
        return await self._ask(CLASSIFY, inputs, options)

    @overload
    async def ner(self, inputs: str, **options: Unpack[NerOptions]) -> Tagged: ...
    @overload
    async def ner(self, inputs: list[str], **options: Unpack[NerOptions]) -> list[Tagged]: ...
    async def ner(
        self, inputs: str | list[str], **options: Unpack[NerOptions]
    ) -> Tagged | list[Tagged]:
        """Finds the entities of texts."""
        return await self._ask(NER, inputs, options)

    @overload
    async def qa(self, inputs: QuestionAndContext, **options: Unpack[QaOptions]) -> Answered: ...
    @overload
    async def qa(
        self, inputs: list[AnyQuestion], **options: Unpack[QaOptions]
    ) -> list[Answered]: ...
    async def qa(
        self, inputs: QuestionAndContext | list[AnyQuestion], **options: Unpack[QaOptions]
    ) -> Answered | list[Answered]:
        """Finds the passages of contexts that answer questions."""
        return await self._ask(QA, inputs, options)

    @overload
    async def features(self, inputs: str, **options: Unpack[FeaturesOptions]) -> Features: ...
    @overload
    async def features(
        self, inputs: list[str], **options: Unpack[FeaturesOptions]
    ) -> list[Features]: ...
    async def features(
        self, inputs: str | list[str], **options: Unpack[FeaturesOptions]
    ) -> Features | list[Features]:
        """Extracts vectors of texts, or of their words or tokens, from an encoder's layers."""
        return await self._ask(FEATURES, inputs, options)

    @overload
    async def similarity(
        self, source: str, inputs: str, **options: Unpack[SimilarityOptions]
    ) -> Similarity: ...
    @overload
    async def similarity(
        self, source: str, inputs: list[str], **options: Unpack[SimilarityOptions]
    ) -> list[Similarity]: ...
    async def similarity(
        self, source: str, inputs: str | list[str], **options: Unpack[SimilarityOptions]
    ) -> Similarity | list[Similarity]:
        """Compares texts with a source: the cosine of their vectors."""
        return await self._ask(SIMILARITY, inputs, options, {"source": source})

    @overload
    async def fill_mask(self, inputs: str, **options: Unpack[FillMaskOptions]) -> Filled: ...
    @overload
    async def fill_mask(
        self, inputs: list[str], **options: Unpack[FillMaskOptions]
    ) -> list[Filled]: ...
    async def fill_mask(
        self, inputs: str | list[str], **options: Unpack[FillMaskOptions]
    ) -> Filled | list[Filled]:
        """Finds likely words for each [MASK]."""
        return await self._ask(FILL_MASK, inputs, options)

    @overload
    async def next_sentence(
        self, inputs: TextPair | Mapping[str, str], **options: Unpack[TextOptions]
    ) -> NextSentence: ...
    @overload
    async def next_sentence(
        self, inputs: list[AnyPair], **options: Unpack[TextOptions]
    ) -> list[NextSentence]: ...
    async def next_sentence(
        self, inputs: TextPair | Mapping[str, str] | list[AnyPair], **options: Unpack[TextOptions]
    ) -> NextSentence | list[NextSentence]:
        """Predicts whether the second text of a pair follows the first."""
        return await self._ask(NEXT_SENTENCE, inputs, options)

    @overload
    async def pseudo_perplexity(
        self, inputs: str, **options: Unpack[PseudoPerplexityOptions]
    ) -> Judged: ...
    @overload
    async def pseudo_perplexity(
        self, inputs: list[str], **options: Unpack[PseudoPerplexityOptions]
    ) -> list[Judged]: ...
    async def pseudo_perplexity(
        self, inputs: str | list[str], **options: Unpack[PseudoPerplexityOptions]
    ) -> Judged | list[Judged]:
        """Computes the pseudo-perplexity of texts, with a probability for each token."""
        return await self._ask(PSEUDO_PERPLEXITY, inputs, options)

    @overload
    async def zero_shot(
        self, inputs: str, labels: list[str], **options: Unpack[ZeroShotOptions]
    ) -> Classified: ...
    @overload
    async def zero_shot(
        self, inputs: list[str], labels: list[str], **options: Unpack[ZeroShotOptions]
    ) -> list[Classified]: ...
    async def zero_shot(
        self, inputs: str | list[str], labels: list[str], **options: Unpack[ZeroShotOptions]
    ) -> Classified | list[Classified]:
        """Classifies texts by labels that the model, one of entailment, has never seen."""
        return await self._ask(ZERO_SHOT, inputs, options, {"labels": labels})

    @overload
    async def relevance(
        self, query: str, documents: str, **options: Unpack[RelevanceOptions]
    ) -> Relevance: ...
    @overload
    async def relevance(
        self, query: str, documents: list[str], **options: Unpack[RelevanceOptions]
    ) -> list[Relevance]: ...
    async def relevance(
        self, query: str, documents: str | list[str], **options: Unpack[RelevanceOptions]
    ) -> Relevance | list[Relevance]:
        """Scores how well documents answer a query, in their order; a reranker sorts by it."""
        return await self._ask(RELEVANCE, documents, options, {"query": query})

    @overload
    async def explain(self, inputs: TextOrPair, **options: Unpack[ExplainOptions]) -> Explained: ...
    @overload
    async def explain(
        self, inputs: list[AnyText], **options: Unpack[ExplainOptions]
    ) -> list[Explained]: ...
    async def explain(
        self, inputs: TextOrPair | list[AnyText], **options: Unpack[ExplainOptions]
    ) -> Explained | list[Explained]:
        """Returns attention and the attributions of a label; sends one request per text."""
        return await self._ask(EXPLAIN, inputs, options)

    @overload
    async def tokenize(self, inputs: str, **options: Unpack[TokenizeOptions]) -> Tokens: ...
    @overload
    async def tokenize(
        self, inputs: list[str], **options: Unpack[TokenizeOptions]
    ) -> list[Tokens]: ...
    async def tokenize(
        self, inputs: str | list[str], **options: Unpack[TokenizeOptions]
    ) -> Tokens | list[Tokens]:
        """Tokenizes texts as a model does."""
        return await self._ask(TOKENIZE, inputs, options)

    @overload
    async def decode(self, ids: list[int], **options: Unpack[DecodeOptions]) -> Decoded: ...
    @overload
    async def decode(
        self, ids: list[list[int]], **options: Unpack[DecodeOptions]
    ) -> list[Decoded]: ...
    async def decode(
        self, ids: list[int] | list[list[int]], **options: Unpack[DecodeOptions]
    ) -> Decoded | list[Decoded]:
        """Decodes token ids: one list of ids, or several."""
        return await self._ask(DECODE, ids, options)

    async def info(self) -> Info:
        """Returns the loaded models and the server's limits."""
        return info_of(await self._exchange(Request("GET", "/info")), self._settings.shown_address)

    async def health(self) -> bool:
        """Returns whether the server's process is alive; not retried."""
        return is_healthy(await self._try(Request("GET", "/health"), self._settings.attempts()))

    async def ready(self) -> bool:
        """Returns whether the server's models are loaded; not retried."""
        return is_healthy(await self._try(Request("GET", "/ready"), self._settings.attempts()))

    async def _ask(
        self,
        route: Route[R],
        inputs: object,
        options: Mapping[str, object],
        fixed: Mapping[str, object] | None = None,
    ) -> R | list[R]:
        inquiry = Inquiry(route, inputs, options, self._settings.shown_address, fixed)
        if inquiry.is_large:
            inquiry.keep_within(await self._known_limits())
        if inquiry.is_list:
            await self._ask_concurrently(inquiry)
        while (part := inquiry.take()) is not None:
            inquiry.put(part, await self._exchange(inquiry.request(part)))
        return inquiry.results

    async def _ask_concurrently(self, inquiry: Inquiry[R]) -> None:
        """Sends the requests of all parts, a few at a time; the first error cancels the others."""
        running: dict[asyncio.Task[Reply], Part] = {}
        try:
            while True:
                while len(running) < self._settings.concurrency and (part := inquiry.take()):
                    sending = self._exchange(inquiry.request(part))
                    running[asyncio.create_task(sending)] = part
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for request in done:
                    inquiry.put(running.pop(request), request.result())
        finally:
            for request in running:
                request.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _exchange(self, request: Request) -> Reply:
        attempts = self._settings.attempts()
        while True:
            step = attempts.after(await self._try(request, attempts))
            if isinstance(step, Reply):
                return step
            await asyncio.sleep(step)

    async def _try(self, request: Request, attempts: Attempts) -> Reply | Failure:
        try:
            response = await self._http.request(**request.for_httpx, timeout=attempts.timeout)
        except httpx2.RequestError as error:
            return failure_of(error)
        return reply_of(response)

    async def _known_limits(self) -> Limits:
        if self._limits is None:
            reply = await self._exchange(Request("GET", "/info"))
            self._limits = limits_of(reply, self._settings.shown_address)
        return self._limits

"""The client of programs that do other things meanwhile: as `Client`, with `await`."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self, Unpack, overload

import httpx2

from serving.client import routes
from serving.client.answers import info_of, is_well, limits_of
from serving.client.exchange import Attempts, Lost, Reply, Request, lost_by, reply_of
from serving.client.inquiry import Inquiry, Part
from serving.client.results import (
    Answered,
    Classified,
    Decoded,
    Explained,
    Features,
    Filled,
    Info,
    Judged,
    NextSentence,
    Similarity,
    Tagged,
    Tokens,
)
from serving.client.routes import (
    AnyPair,
    AnyQuestion,
    AnyText,
    ClassifyOptions,
    DecodeOptions,
    ExplainOptions,
    FeaturesOptions,
    FillMaskOptions,
    NerOptions,
    PseudoPerplexityOptions,
    QaOptions,
    QuestionAndContext,
    R,
    Route,
    SimilarityOptions,
    TextOptions,
    TextOrPair,
    TokenizeOptions,
)
from serving.client.settings import ClientSettings
from serving.limits import Limits
from serving.schemas.fields import TextPair


class AsyncClient:
    """Asks a server, from one event loop of `asyncio`; see `Client` for what is asked and raised.

    A task that is cancelled has none of its requests go on.
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
        """Decides about texts or pairs: one label, several, or a number."""
        return await self._ask(routes.CLASSIFY, inputs, options)

    @overload
    async def ner(self, inputs: str, **options: Unpack[NerOptions]) -> Tagged: ...
    @overload
    async def ner(self, inputs: list[str], **options: Unpack[NerOptions]) -> list[Tagged]: ...
    async def ner(
        self, inputs: str | list[str], **options: Unpack[NerOptions]
    ) -> Tagged | list[Tagged]:
        """Finds the entities of texts."""
        return await self._ask(routes.NER, inputs, options)

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
        return await self._ask(routes.QA, inputs, options)

    @overload
    async def features(self, inputs: str, **options: Unpack[FeaturesOptions]) -> Features: ...
    @overload
    async def features(
        self, inputs: list[str], **options: Unpack[FeaturesOptions]
    ) -> list[Features]: ...
    async def features(
        self, inputs: str | list[str], **options: Unpack[FeaturesOptions]
    ) -> Features | list[Features]:
        """Reads vectors of texts, or of their words or tokens, off an encoder's layers."""
        return await self._ask(routes.FEATURES, inputs, options)

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
        return await self._ask(routes.SIMILARITY, inputs, options, {"source": source})

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
        return await self._ask(routes.FILL_MASK, inputs, options)

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
        """Judges whether the second text of a pair follows the first."""
        return await self._ask(routes.NEXT_SENTENCE, inputs, options)

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
        """Judges how likely texts are, token by token."""
        return await self._ask(routes.PSEUDO_PERPLEXITY, inputs, options)

    @overload
    async def explain(self, inputs: TextOrPair, **options: Unpack[ExplainOptions]) -> Explained: ...
    @overload
    async def explain(
        self, inputs: list[AnyText], **options: Unpack[ExplainOptions]
    ) -> list[Explained]: ...
    async def explain(
        self, inputs: TextOrPair | list[AnyText], **options: Unpack[ExplainOptions]
    ) -> Explained | list[Explained]:
        """Shows the attention of each head, and what a label hangs on; a request for each text."""
        return await self._ask(routes.EXPLAIN, inputs, options)

    @overload
    async def tokenize(self, inputs: str, **options: Unpack[TokenizeOptions]) -> Tokens: ...
    @overload
    async def tokenize(
        self, inputs: list[str], **options: Unpack[TokenizeOptions]
    ) -> list[Tokens]: ...
    async def tokenize(
        self, inputs: str | list[str], **options: Unpack[TokenizeOptions]
    ) -> Tokens | list[Tokens]:
        """Cuts texts into the tokens that a model reads."""
        return await self._ask(routes.TOKENIZE, inputs, options)

    @overload
    async def decode(self, ids: list[int], **options: Unpack[DecodeOptions]) -> Decoded: ...
    @overload
    async def decode(
        self, ids: list[list[int]], **options: Unpack[DecodeOptions]
    ) -> list[Decoded]: ...
    async def decode(
        self, ids: list[int] | list[list[int]], **options: Unpack[DecodeOptions]
    ) -> Decoded | list[Decoded]:
        """Makes texts of tokens' ids: of a list of ids, or of several."""
        return await self._ask(routes.DECODE, ids, options)

    async def info(self) -> Info:
        """What the server has loaded, and within which limits it may be asked."""
        return info_of(await self._exchange(Request("GET", "/info")), self._settings.shown_address)

    async def health(self) -> bool:
        """Whether the server's process is alive; asked once."""
        return is_well(await self._try(Request("GET", "/health"), self._settings.attempts()))

    async def ready(self) -> bool:
        """Whether the server's models are loaded, so that it answers; asked once."""
        return is_well(await self._try(Request("GET", "/ready"), self._settings.attempts()))

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
            await self._ask_at_once(inquiry)
        while (part := inquiry.take()) is not None:
            inquiry.put(part, await self._exchange(inquiry.request(part)))
        return inquiry.results

    async def _ask_at_once(self, inquiry: Inquiry[R]) -> None:
        """Asks about all parts, a few at once; after an error no more is asked."""
        running: dict[asyncio.Task[Reply], Part] = {}
        try:
            while True:
                while len(running) < self._settings.concurrency and (part := inquiry.take()):
                    request = inquiry.request(part)
                    running[asyncio.create_task(self._exchange(request))] = part
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    inquiry.put(running.pop(each), each.result())
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _exchange(self, request: Request) -> Reply:
        """Makes a request until it is answered."""
        attempts = self._settings.attempts()
        while True:
            step = attempts.after(await self._try(request, attempts))
            if isinstance(step, Reply):
                return step
            await asyncio.sleep(step)

    async def _try(self, request: Request, attempts: Attempts) -> Reply | Lost:
        """Makes a request once."""
        try:
            response = await self._http.request(**request.for_httpx, timeout=attempts.timeout)
        except httpx2.RequestError as error:
            return lost_by(error)
        return reply_of(response)

    async def _known_limits(self) -> Limits:
        if self._limits is None:
            reply = await self._exchange(Request("GET", "/info"))
            self._limits = limits_of(reply, self._settings.shown_address)
        return self._limits

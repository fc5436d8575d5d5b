"""The client of programs that wait: questions in, results out. `AsyncClient` is for all others."""

from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from threading import Event
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


class Client:
    """Asks a server; threads may share one.

    One item in gives one result; a list gives a list of them in its order, asked in as many
    requests as the server's limits need, `concurrency` at once. What fails for a while is tried
    again, for `retry_seconds` for each request.

    Methods raise `RefusalError`, `UnreachableError`, `NoAnswerError` or
    `AnswerError`; all are `ClientError`. See `ClientSettings` for what is given here.
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
        self._http = httpx2.Client(**self._settings.for_httpx)
        self._limits: Limits | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.shown_address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    @overload
    def classify(self, inputs: TextOrPair, **options: Unpack[ClassifyOptions]) -> Classified: ...
    @overload
    def classify(
        self, inputs: list[AnyText], **options: Unpack[ClassifyOptions]
    ) -> list[Classified]: ...
    def classify(
        self, inputs: TextOrPair | list[AnyText], **options: Unpack[ClassifyOptions]
    ) -> Classified | list[Classified]:
        """Decides about texts or pairs: one label, several, or a number."""
        return self._ask(routes.CLASSIFY, inputs, options)

    @overload
    def ner(self, inputs: str, **options: Unpack[NerOptions]) -> Tagged: ...
    @overload
    def ner(self, inputs: list[str], **options: Unpack[NerOptions]) -> list[Tagged]: ...
    def ner(self, inputs: str | list[str], **options: Unpack[NerOptions]) -> Tagged | list[Tagged]:
        """Finds the entities of texts."""
        return self._ask(routes.NER, inputs, options)

    @overload
    def qa(self, inputs: QuestionAndContext, **options: Unpack[QaOptions]) -> Answered: ...
    @overload
    def qa(self, inputs: list[AnyQuestion], **options: Unpack[QaOptions]) -> list[Answered]: ...
    def qa(
        self, inputs: QuestionAndContext | list[AnyQuestion], **options: Unpack[QaOptions]
    ) -> Answered | list[Answered]:
        """Finds the passages of contexts that answer questions."""
        return self._ask(routes.QA, inputs, options)

    @overload
    def features(self, inputs: str, **options: Unpack[FeaturesOptions]) -> Features: ...
    @overload
    def features(self, inputs: list[str], **options: Unpack[FeaturesOptions]) -> list[Features]: ...
    def features(
        self, inputs: str | list[str], **options: Unpack[FeaturesOptions]
    ) -> Features | list[Features]:
        """Reads vectors of texts, or of their words or tokens, off an encoder's layers."""
        return self._ask(routes.FEATURES, inputs, options)

    @overload
    def similarity(
        self, source: str, inputs: str, **options: Unpack[SimilarityOptions]
    ) -> Similarity: ...
    @overload
    def similarity(
        self, source: str, inputs: list[str], **options: Unpack[SimilarityOptions]
    ) -> list[Similarity]: ...
    def similarity(
        self, source: str, inputs: str | list[str], **options: Unpack[SimilarityOptions]
    ) -> Similarity | list[Similarity]:
        """Compares texts with a source: the cosine of their vectors."""
        return self._ask(routes.SIMILARITY, inputs, options, {"source": source})

    @overload
    def fill_mask(self, inputs: str, **options: Unpack[FillMaskOptions]) -> Filled: ...
    @overload
    def fill_mask(self, inputs: list[str], **options: Unpack[FillMaskOptions]) -> list[Filled]: ...
    def fill_mask(
        self, inputs: str | list[str], **options: Unpack[FillMaskOptions]
    ) -> Filled | list[Filled]:
        """Finds likely words for each [MASK]."""
        return self._ask(routes.FILL_MASK, inputs, options)

    @overload
    def next_sentence(
        self, inputs: TextPair | Mapping[str, str], **options: Unpack[TextOptions]
    ) -> NextSentence: ...
    @overload
    def next_sentence(
        self, inputs: list[AnyPair], **options: Unpack[TextOptions]
    ) -> list[NextSentence]: ...
    def next_sentence(
        self, inputs: TextPair | Mapping[str, str] | list[AnyPair], **options: Unpack[TextOptions]
    ) -> NextSentence | list[NextSentence]:
        """Judges whether the second text of a pair follows the first."""
        return self._ask(routes.NEXT_SENTENCE, inputs, options)

    @overload
    def pseudo_perplexity(
        self, inputs: str, **options: Unpack[PseudoPerplexityOptions]
    ) -> Judged: ...
    @overload
    def pseudo_perplexity(
        self, inputs: list[str], **options: Unpack[PseudoPerplexityOptions]
    ) -> list[Judged]: ...
    def pseudo_perplexity(
        self, inputs: str | list[str], **options: Unpack[PseudoPerplexityOptions]
    ) -> Judged | list[Judged]:
        """Judges how likely texts are, token by token."""
        return self._ask(routes.PSEUDO_PERPLEXITY, inputs, options)

    @overload
    def explain(self, inputs: TextOrPair, **options: Unpack[ExplainOptions]) -> Explained: ...
    @overload
    def explain(
        self, inputs: list[AnyText], **options: Unpack[ExplainOptions]
    ) -> list[Explained]: ...
    def explain(
        self, inputs: TextOrPair | list[AnyText], **options: Unpack[ExplainOptions]
    ) -> Explained | list[Explained]:
        """Shows the attention of each head, and what a label hangs on; a request for each text."""
        return self._ask(routes.EXPLAIN, inputs, options)

    @overload
    def tokenize(self, inputs: str, **options: Unpack[TokenizeOptions]) -> Tokens: ...
    @overload
    def tokenize(self, inputs: list[str], **options: Unpack[TokenizeOptions]) -> list[Tokens]: ...
    def tokenize(
        self, inputs: str | list[str], **options: Unpack[TokenizeOptions]
    ) -> Tokens | list[Tokens]:
        """Cuts texts into the tokens that a model reads."""
        return self._ask(routes.TOKENIZE, inputs, options)

    @overload
    def decode(self, ids: list[int], **options: Unpack[DecodeOptions]) -> Decoded: ...
    @overload
    def decode(self, ids: list[list[int]], **options: Unpack[DecodeOptions]) -> list[Decoded]: ...
    def decode(
        self, ids: list[int] | list[list[int]], **options: Unpack[DecodeOptions]
    ) -> Decoded | list[Decoded]:
        """Makes texts of tokens' ids: of a list of ids, or of several."""
        return self._ask(routes.DECODE, ids, options)

    def info(self) -> Info:
        """What the server has loaded, and within which limits it may be asked."""
        return info_of(self._exchange(Request("GET", "/info")), self._settings.shown_address)

    def health(self) -> bool:
        """Whether the server's process is alive; asked once."""
        return is_well(self._try(Request("GET", "/health"), self._settings.attempts()))

    def ready(self) -> bool:
        """Whether the server's models are loaded, so that it answers; asked once."""
        return is_well(self._try(Request("GET", "/ready"), self._settings.attempts()))

    def _ask(
        self,
        route: Route[R],
        inputs: object,
        options: Mapping[str, object],
        fixed: Mapping[str, object] | None = None,
    ) -> R | list[R]:
        inquiry = Inquiry(route, inputs, options, self._settings.shown_address, fixed)
        if inquiry.is_large:
            inquiry.keep_within(self._known_limits())
        if inquiry.is_list:
            self._ask_at_once(inquiry)
        while (part := inquiry.take()) is not None:
            inquiry.put(part, self._exchange(inquiry.request(part)))
        return inquiry.results

    def _ask_at_once(self, inquiry: Inquiry[R]) -> None:
        """Asks about all parts, a few at once; after an error no more is asked."""
        given_up = Event()
        pool = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="asking")
        running: dict[Future[Reply], Part] = {}
        try:
            while True:
                while len(running) < self._settings.concurrency and (part := inquiry.take()):
                    request = inquiry.request(part)
                    running[pool.submit(self._exchange, request, given_up)] = part
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    inquiry.put(running.pop(each), each.result())
        finally:
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _exchange(self, request: Request, given_up: Event | None = None) -> Reply:
        """Makes a request until it is answered; raises `CancelledError` where it is given up."""
        attempts = self._settings.attempts()
        given_up = given_up or Event()
        while True:
            step = attempts.after(self._try(request, attempts))
            if isinstance(step, Reply):
                return step
            if given_up.wait(step):
                raise CancelledError

    def _try(self, request: Request, attempts: Attempts) -> Reply | Lost:
        """Makes a request once."""
        try:
            response = self._http.request(**request.for_httpx, timeout=attempts.timeout)
        except httpx2.RequestError as error:
            return lost_by(error)
        return reply_of(response)

    def _known_limits(self) -> Limits:
        if self._limits is None:
            reply = self._exchange(Request("GET", "/info"))
            self._limits = limits_of(reply, self._settings.shown_address)
        return self._limits

"""The blocking client: `AsyncClient`, run by one background thread."""

import asyncio
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from serving.client.asynchronous import AsyncClient, ClientSettings

P = ParamSpec("P")
T = TypeVar("T")
_Method = Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]


def _blocking(method: _Method[P, T]) -> Callable[Concatenate["Client", P], T]:
    """Makes a method of `Client` of one of `AsyncClient`, with the same signature."""

    @functools.wraps(method)
    def wait(self: "Client", /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._background().run(lambda client: method(client, *arguments, **options))

    return wait


class Client:
    """Sends requests to a server and waits for the results; threads may share one client.

    One item gives one result. A list gives a list in its order, sent in as many requests as the
    server's limits need, `concurrency` at a time. Temporary failures are retried, for up to
    `retry_seconds` for each request. See `ClientSettings` for the arguments.

    The connections belong to a background thread, which starts with the first request and ends
    with `close`. A forked process that uses the client gets its own thread and connections.

    Methods raise `RefusalError`, `UnreachableError`, `NoAnswerError` or `AnswerError`, all of them
    `ClientError`, and `RuntimeError` after `close`.
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
        self._backgrounds: dict[int, _Background] = {}  # by process id; never more than one alive

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
        """Cancels requests in flight, closes the connections and ends the background thread."""
        self._background().close()

    classify = _blocking(AsyncClient.classify)
    ner = _blocking(AsyncClient.ner)
    qa = _blocking(AsyncClient.qa)
    features = _blocking(AsyncClient.features)
    similarity = _blocking(AsyncClient.similarity)
    fill_mask = _blocking(AsyncClient.fill_mask)
    next_sentence = _blocking(AsyncClient.next_sentence)
    pseudo_perplexity = _blocking(AsyncClient.pseudo_perplexity)
    zero_shot = _blocking(AsyncClient.zero_shot)
    relevance = _blocking(AsyncClient.relevance)
    explain = _blocking(AsyncClient.explain)
    tokenize = _blocking(AsyncClient.tokenize)
    decode = _blocking(AsyncClient.decode)
    info = _blocking(AsyncClient.info)
    health = _blocking(AsyncClient.health)
    ready = _blocking(AsyncClient.ready)

    def _background(self) -> "_Background":
        """The thread of this process: that of a parent process does not exist after a fork."""
        process_id = os.getpid()
        known = self._backgrounds.get(process_id)
        if known is not None:
            return known
        # `setdefault` is atomic. A lock could have been copied by a fork while it was taken.
        created = self._backgrounds.setdefault(process_id, _Background(self._settings))
        weakref.finalize(self, created.stop)  # of a client that nobody closes
        return created


class _Background:
    """A thread with an event loop and an `AsyncClient`, from the first call to `close`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._client = AsyncClient(**vars(settings))
        self._stopping = asyncio.Event()
        self._is_closed = False

    def run(self, ask: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in the thread; one that is no longer waited for is cancelled."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            self._start()
            future = asyncio.run_coroutine_threadsafe(ask(self._client), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("the client was closed during the request") from None
        except BaseException:
            future.cancel()  # by Ctrl-C, for example
            raise

    def close(self) -> None:
        """Ends the thread and waits until its connections are closed."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        if os.getpid() != self._process_id:
            return  # a copy: the loop and its connections are the parent's
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            if self._thread is not None and not was_closed:
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            name = f"client of {self._settings.shown_address}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()
            self._thread = thread

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        async with self._client:
            await self._stopping.wait()
            requests = asyncio.all_tasks() - {asyncio.current_task()}
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

"""What a server counts, for Prometheus: requests, micro-batches, tokens, padding, truncations."""

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from serving.batching import Batch, Batcher

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counts of one application; each has a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "bertline_requests",
            "Requests that were answered",
            ("route", "model", "status"),
            registry=self.registry,
        )
        self._unread = self._requests.labels("unread", "", "429")
        self._seconds = Histogram(
            "bertline_request_seconds",
            "From a request's arrival to the end of its answer",
            ("route", "model"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._truncated = Counter(
            "bertline_truncated_texts",
            "Texts that lost tokens, as their clients asked for",
            ("model",),
            registry=self.registry,
        )
        self._tokens = self._counter("bertline_tokens", "Tokens that encoders computed")
        self._padding = self._counter("bertline_padding", "Places that encoders computed in vain")
        self._batch_seconds = self._histogram(
            "bertline_batch_seconds", "What a micro-batch took", _SECONDS
        )
        self._batch_fill = self._histogram(
            "bertline_batch_fill", "Tokens of a micro-batch, of those it may have", _SHARES
        )
        self._batch_requests = self._histogram(
            "bertline_batch_requests", "Requests that a micro-batch is of", _REQUESTS
        )
        self._waiting = Gauge(
            "bertline_waiting_tokens",
            "Tokens that no micro-batch has taken yet",
            ("encoder",),
            registry=self.registry,
        )

    def count_request(self, route: str, model: str, status: int, seconds: float) -> None:
        """Takes in a request that was answered."""
        self._requests.labels(route, model, str(status)).inc()
        self._seconds.labels(route, model).observe(seconds)

    def count_unread(self) -> None:
        """Takes in a request that was turned away before it was read."""
        self._unread.inc()

    def count_truncated(self, model: str, texts: int) -> None:
        """Takes in texts of a request that lost tokens."""
        if texts:
            self._truncated.labels(model).inc(texts)

    def watch(self, encoder: str, batcher: Batcher) -> None:
        """Takes in each micro-batch of an encoder from now on, and how much waits at it."""
        batcher.watch = self._watcher(encoder, batcher.max_tokens)
        self._waiting.labels(encoder).set_function(lambda: batcher.waiting_tokens)

    @property
    def text(self) -> bytes:
        """All counts, as Prometheus reads them."""
        return generate_latest(self.registry)

    def _watcher(self, encoder: str, max_tokens: int) -> Callable[[Batch], None]:
        tokens, padding = self._tokens.labels(encoder), self._padding.labels(encoder)
        seconds, fill = self._batch_seconds.labels(encoder), self._batch_fill.labels(encoder)
        requests = self._batch_requests.labels(encoder)

        def watch(batch: Batch) -> None:
            tokens.inc(batch.num_tokens)
            padding.inc(batch.num_slots - batch.num_tokens)
            seconds.observe(batch.seconds)
            fill.observe(batch.num_tokens / max_tokens)
            requests.observe(batch.num_requests)

        return watch

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("encoder",), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(name, text, ("encoder",), buckets=tuple(buckets), registry=self.registry)

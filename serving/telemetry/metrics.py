"""A server's metrics for Prometheus: requests, micro-batches, tokens, padding, truncations."""

from collections.abc import Callable, Collection, Mapping

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
        self._requests = self._counter(
            "requests", "Requests that were answered", "route", "model", "status"
        )
        self._unread = self._requests.labels("unread", "", "429")
        self._by_version = self._counter(
            "version_requests",
            "Requests that a version was given, by its role; of present versions",
            *("model", "version", "role"),
        )
        self._versions: set[tuple[str, str, str]] = set()
        self._seconds = self._histogram(
            *("request_seconds", "From a request's arrival to the end of its answer"),
            *(_SECONDS, "route", "model"),
        )
        self._truncated = self._counter(
            "truncated_texts", "Texts that lost tokens, as their clients asked for", "model"
        )
        self._tokens = self._counter("tokens", "Tokens that encoders computed", "encoder")
        self._padding = self._counter("padding", "Padding that encoders computed", "encoder")
        self._batch_seconds = self._histogram(
            "batch_seconds", "Duration of a micro-batch", _SECONDS, "encoder"
        )
        self._batch_fill = self._histogram(
            "batch_fill", "Tokens of a micro-batch, relative to its maximum", _SHARES, "encoder"
        )
        self._batch_requests = self._histogram(
            "batch_requests", "Requests in a micro-batch", _REQUESTS, "encoder"
        )
        self._waiting = self._gauge(
            "waiting_tokens", "Tokens that no micro-batch has taken yet", "encoder"
        )
        self._watched: set[str] = set()
        self._version = self._gauge(
            "model_version", "Version in MLflow's registry that answers", "model"
        )
        self._switches = self._counter(
            "switches",
            "Versions that have taken over while the server ran, or were refused",
            *("model", "result"),
        )
        self._compared = self._counter(
            "shadow_items",
            "Items that a model's shadow was asked too, and whether it agrees",
            *("model", "result"),
        )
        self._not_compared = self._counter(
            "shadow_missed_requests",
            "Requests that a model's shadow had no time for, or failed at",
            "model",
        )
        self._reachable = self._gauge(
            "registry_reachable",
            "1 if MLflow answered when it was asked last which version an alias is",
            "model",
        )
        self._asked_at = self._gauge(
            "registry_asked_timestamp_seconds",
            "When MLflow was asked last which version an alias is",
            "model",
        )
        self._newest = self._gauge(
            "registry_newest_version",
            "Highest version in MLflow's registry of the model that an alias follows",
            "model",
        )

    def count_request(self, route: str, model: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        self._requests.labels(route, model, str(status)).inc()
        self._seconds.labels(route, model).observe(seconds)

    def count_version(self, model: str, version: str, role: str) -> None:
        """Counts a request that a version was given; "" is none."""
        if model:
            self._by_version.labels(model, version, role).inc()
            self._versions.add((model, version, role))

    def keep_versions(self, present: Collection[tuple[str, str, str]]) -> None:
        """Forgets the counts of all versions but those (model, version, role)."""
        for version in list(self._versions):  # a copy: others are counted meanwhile
            if version not in present:
                self._versions.discard(version)
                self._by_version.remove(*version)

    def count_unread(self) -> None:
        """Counts a request that was refused before it was read."""
        self._unread.inc()

    def count_truncated(self, model: str, texts: int) -> None:
        """Counts texts of a request that lost tokens."""
        if texts:
            self._truncated.labels(model).inc(texts)

    def watch(self, batchers: Mapping[str, Batcher]) -> None:
        """Counts the micro-batches and queued tokens of these encoders, and of no others."""
        for encoder, batcher in batchers.items():
            batcher.watch = self._watcher(encoder, batcher.max_tokens)
            self._waiting.labels(encoder).set_function(_waiting_at(batcher))
        for encoder in self._watched - batchers.keys():
            self._waiting.remove(encoder)
        self._watched = set(batchers)

    def note_version(self, model: str, version: int) -> None:
        """Records which version of the registry answers from now on."""
        self._version.labels(model).set(version)

    def count_switch(self, model: str, *, is_refused: bool = False) -> None:
        """Counts a version that has taken over, or was refused."""
        self._switches.labels(model, "refused" if is_refused else "switched").inc()

    def count_compared(self, model: str, *, agree: bool) -> None:
        """Counts an item that the model's shadow was asked too."""
        self._compared.labels(model, "agree" if agree else "differ").inc()

    def count_not_compared(self, model: str) -> None:
        """Counts a request that the model's shadow had no time for, or failed at."""
        self._not_compared.labels(model).inc()

    def note_registry(
        self, model: str, *, is_reachable: bool, asked_at: float, newest_version: int | None = None
    ) -> None:
        """Records whether MLflow answered last, and when it was asked.

        With `newest_version` None the value before stays.
        """
        self._reachable.labels(model).set(is_reachable)
        self._asked_at.labels(model).set(asked_at)
        if newest_version is not None:
            self._newest.labels(model).set(newest_version)

    def forget(self, model: str) -> None:
        """Removes the gauges of a slot that is empty now."""
        for gauge in (self._version, self._reachable, self._asked_at, self._newest):
            gauge.remove(model)

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

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"bertline_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"bertline_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"bertline_{name}", text, labels, buckets=buckets, registry=self.registry)


def _waiting_at(batcher: Batcher) -> Callable[[], float]:
    return lambda: batcher.waiting_tokens

"""What a replica on Ray Serve counts, for Prometheus at the metrics port of the replica's node.

A scrape of `/metrics` would reach one replica by chance. Ray puts `ray_` before the names;
infra/monitoring takes it away again.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from ray.util.metrics import Gauge

_LOG = logging.getLogger("ray.serve")

SECONDS = 5.0
"""Between two looks at the counts; Ray passes them on every ten."""
_OURS = "bertline_"

_Series = tuple[tuple[str, str], ...]


class RayExport:
    """Copies the counts of a registry to Ray now and then, from a thread of its own.

    Every sample becomes a gauge of its name and labels, with `tags` besides: a gauge goes when its
    process does, and Prometheus rates it as it does a counter.
    """

    def __init__(
        self, registry: CollectorRegistry, tags: Mapping[str, str], seconds: float = SECONDS
    ) -> None:
        self._registry, self._tags, self._seconds = registry, dict(tags), seconds
        self._gauges: dict[str, Any] = {}
        self._shown: set[tuple[str, _Series]] = set()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-export", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed.set()
        self._thread.join()

    def copy(self) -> None:
        """Copies all samples once; those that are there no more become no number, which is none."""
        shown: set[tuple[str, _Series]] = set()
        for name, labels, value in self._samples():
            tags = labels | self._tags
            gauge = self._gauges.get(name)
            if gauge is None:
                gauge = self._gauges[name] = Gauge(name, name, tuple(tags))
            gauge.set(value, tags)
            shown.add((name, tuple(tags.items())))
        for name, series in self._shown - shown:
            self._gauges[name].set(float("nan"), dict(series))
        self._shown = shown

    def _samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name.startswith(_OURS) and not sample.name.endswith("_created"):
                    yield sample.name, dict(sample.labels), float(sample.value)

    def _run(self) -> None:
        while not self._is_closed.wait(self._seconds):
            try:
                self.copy()
            except Exception:
                _LOG.exception("exporting metrics")

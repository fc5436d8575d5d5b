"""Asks shadows the same after an answer, and counts where the two agree."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from bert_core.tasks.answers import Codec
from serving.batching import DeadlineError, OverloadedError
from serving.models import ServedModel
from serving.telemetry.metrics import Metrics

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 64
"""Requests that wait to be compared; more are not compared."""


@dataclass(frozen=True)
class Agreement:
    """Items on which a shadow agrees or not, and requests that it was not asked."""

    agree: int = 0
    differ: int = 0
    missed: int = 0


class Shadows:
    """Asks shadows on a thread of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._agreements: WeakKeyDictionary[ServedModel, Agreement] = WeakKeyDictionary()
        self._counting = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shadows")
        self._queue_slots = threading.Semaphore(_MOST_WAITING)

    def compare(
        self,
        shadow: ServedModel,
        codec: Codec,
        items: Sequence[Any],
        found: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> None:
        """Asks a shadow the same within so many seconds; then it is no longer in flight."""
        if not self._queue_slots.acquire(blocking=False):
            self._count_missed(shadow)
            shadow.in_flight.end()
            return
        asked = self._thread.submit(self._compare, shadow, codec, items, found, seconds)
        asked.add_done_callback(lambda _: self._end(shadow))

    def agreement(self, shadow: ServedModel) -> Agreement:
        """The counts of a shadow since it was opened."""
        return self._agreements.get(shadow, Agreement())

    def close(self) -> None:
        """Drops what waits."""
        self._thread.shutdown(cancel_futures=True)

    def _end(self, shadow: ServedModel) -> None:
        self._queue_slots.release()
        shadow.in_flight.end()

    def _compare(
        self,
        shadow: ServedModel,
        codec: Codec,
        items: Sequence[Any],
        found: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> None:
        try:
            rows = codec.encode(items, shadow.tokenizer)
            (outputs,) = shadow.batcher.submit(shadow.work(rows), seconds).result()
            others = codec.decode(outputs, rows, items)
        except (OverloadedError, DeadlineError):
            self._count_missed(shadow)
            return
        except Exception as error:  # noqa: BLE001 - the answer was given already
            # Its message may be a part of a text.
            kind = type(error).__name__
            _LOG.warning("warning: the shadow of %s failed: %s", shadow.name, kind)
            self._count_missed(shadow)
            return
        are_alike = [
            decided(mine) == decided(other) for mine, other in zip(found, others, strict=True)
        ]
        for agrees in are_alike:
            self._metrics.count_compared(shadow.name, agree=agrees)
        self._count(shadow, agree=sum(are_alike), differ=len(are_alike) - sum(are_alike))

    def _count_missed(self, shadow: ServedModel) -> None:
        self._metrics.count_not_compared(shadow.name)
        self._count(shadow, missed=1)

    def _count(
        self, shadow: ServedModel, *, agree: int = 0, differ: int = 0, missed: int = 0
    ) -> None:
        with self._counting:  # missed requests are counted on other threads
            now = self.agreement(shadow)
            self._agreements[shadow] = Agreement(
                now.agree + agree, now.differ + differ, now.missed + missed
            )


def decided(found: Mapping[str, Any]) -> object:
    """The decision of a prediction, whatever its scores: label, labels, entities or passage.

    Of a number the first three digits.
    """
    for read in _DECIDED:
        try:
            return read(found)
        except KeyError:
            continue
    raise ValueError(f"a prediction of no known kind: {sorted(found)}")


_DECIDED: tuple[Callable[[Mapping[str, Any]], object], ...] = (
    lambda found: found["label"],
    lambda found: sorted(found["labels"]),
    lambda found: f"{found['value']:.3g}",
    lambda found: [
        (entity["type"], entity["start"], entity["end"]) for entity in found["entities"]
    ],
    lambda found: found["text"],
)

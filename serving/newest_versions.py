"""The newest version that MLflow has of each model that an alias follows, asked now and then.

What is served is compared with it in metrics: an alias that stays behind is seen.
"""

import time
from collections.abc import Callable

from bert_core.errors import UserError
from serving.pointers import Address

AGAIN_SECONDS = 60.0
"""Between two questions about a model, which are for alerts after hours."""


class NewestVersions:
    """Of one store; `ask` is what asks it, by name and tracking URI."""

    def __init__(self, tracking_uri: str, ask: Callable[[str, str], int | None]) -> None:
        self._tracking_uri, self._ask = tracking_uri, ask
        self._known: dict[str, int | None] = {}
        self._asked_at: dict[str, float] = {}

    def of(self, address: Address) -> int | None:
        """The newest version of the model of an alias, as known for a minute at most.

        Where MLflow does not answer, what it said before. None where nothing is known, and of a
        version by its number: that is meant to stay.
        """
        if address.alias is None:
            return None
        name, now = address.name, time.monotonic()
        if now - self._asked_at.get(name, -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._asked_at[name] = now
            try:
                self._known[name] = self._ask(name, self._tracking_uri)
            except UserError:
                self._known.setdefault(name, None)
        return self._known[name]

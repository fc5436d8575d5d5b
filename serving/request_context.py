"""The request that is being answered: its id, its key, and the models that it uses."""

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from starlette.types import Scope

from serving.keys import Key

AnsweringRole = Literal["active", "canary"]
"""The version that answers a name, or the canary that has a share of its requests."""


class InFlight:
    """Counts the requests that use a model, from any thread; retiring the model waits for them."""

    def __init__(self) -> None:
        self.count = self.total = 0
        """Requests that use it now, and all that ever did."""
        self._changed = threading.Condition()

    def begin(self) -> None:
        """One more request uses it."""
        with self._changed:
            self.count += 1
            self.total += 1

    def end(self) -> None:
        """One of them has ended."""
        with self._changed:
            self.count -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Waits until no request uses it, at most so many seconds; whether that was reached."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.count, seconds)


@dataclass
class RequestContext:
    """What is known of a request so far.

    `version` is that of the model that answers, "" before one is chosen and for one without;
    `role` is that of the version. `num_numbers` counts the numbers that models compute for it.
    """

    request_id: str
    key: Key | None = None
    model: str = ""
    version: str = ""
    role: AnsweringRole = "active"
    num_tokens: int = 0
    num_numbers: int = 0
    _in_flight: list[InFlight] = field(default_factory=list)

    def use(
        self,
        model: str,
        version: str | None,
        in_flight: InFlight,
        role: AnsweringRole = "active",
    ) -> None:
        """Records the model that answers, which stays until the request has ended."""
        in_flight.begin()
        self._in_flight.append(in_flight)
        self.model, self.version, self.role = model, version or "", role

    def drop(self) -> None:
        """Releases the last model, unused."""
        self._in_flight.pop().end()

    def end(self) -> None:
        """Releases the models that it has used."""
        while self._in_flight:
            self._in_flight.pop().end()


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request of this task; None outside of a request."""


def own_path(scope: Scope) -> str:
    """The path of a request without the prefix (Ray Serve's `route_prefix`, uvicorn's `root_path`).

    It is "" at the prefix itself, without a slash. Starlette looks for routes by the same path, so
    what is decided by it, such as whether a path needs a key, holds for the route that answers.
    """
    path, prefix = scope["path"], scope.get("root_path", "")
    rest = path.removeprefix(prefix)
    return rest if path.startswith(prefix) and rest[:1] in ("", "/") else path

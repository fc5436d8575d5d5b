"""Who asks what, known from the request's arrival to its end wherever it is worked on."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from serving.leases import Leases

AnsweringRole = Literal["active", "canary"]
"""The version that answers a name, or the canary that has a share of its requests."""


class Payer(Protocol):
    """Whoever has a share of the server's tokens."""

    @property
    def name(self) -> str:
        """Under which it is known."""
        ...

    def pay(self, num_tokens: int) -> None:
        """Takes tokens off its share; raises `RateLimitError` where it has none left."""
        ...


@dataclass
class RequestContext:
    """A request, as far as it is known: its id, whose key it has, what it asks of which model.

    `version` is that of the model that answers, "" before one is found and of one without; `role`
    is what it is to the name. `num_numbers` are those that models answer it with.
    """

    request_id: str
    payer: Payer | None = None
    model: str = ""
    version: str = ""
    role: AnsweringRole = "active"
    num_tokens: int = 0
    num_numbers: int = 0
    _leases: list[Leases] = field(default_factory=list)

    def use(
        self,
        model: str,
        version: str | None,
        leases: Leases,
        role: AnsweringRole = "active",
    ) -> None:
        """Has the model stay until the request has ended; it is the one that answers."""
        leases.take()
        self._leases.append(leases)
        self.model, self.version, self.role = model, version or "", role

    def drop(self) -> None:
        """Gives back the model that it was given last, unused."""
        self._leases.pop().release()

    def end(self) -> None:
        """Gives back the models that it has used."""
        while self._leases:
            self._leases.pop().release()


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request that is being worked on; None where there is none, as in tests of an engine."""

"""Who asks what, known from the request's arrival to its end wherever it is worked on."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


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
    """A request, as far as it is known: its id, whose key it has, what it asks of which model."""

    request_id: str
    payer: Payer | None = None
    model: str = ""
    num_tokens: int = 0


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request that is being worked on; None where there is none, as in tests of an engine."""

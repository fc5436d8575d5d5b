"""Errors of the client: one line each, never with the key."""

from serving.schemas.fields import Problem


class ClientError(Exception):
    """The base class of the client's errors."""


class RefusalError(ClientError):
    """The server refused the request; has the fields of its problem document.

    - `field` is where the mistake is, such as `inputs[3].text`, counted in the whole list even if
      it was sent in several requests
    - `attempts` and `seconds` are those of the request, with retries
    - `request_id` identifies the last attempt in the server's log
    """

    def __init__(
        self,
        problem: Problem,
        attempts: int = 1,
        seconds: float = 0.0,
        request_id: str | None = None,
    ) -> None:
        super().__init__(problem, attempts, seconds, request_id)
        self.title = problem.title
        self.status = problem.status
        self.detail = problem.detail
        self.field = problem.field
        self.remedy = problem.remedy
        self.attempts = attempts
        self.seconds = seconds
        self.request_id = request_id

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        tried = f"; tried {self.attempts} times in {self.seconds:.1f} s" * (self.attempts > 1)
        return _one_line(f"{self.status}: {where}{self.title}: {self.detail}{remedy}{tried}")


class UnreachableError(ClientError):
    """There is no server at the address, or the connection fails."""

    _WHAT = "server unreachable"
    _REMEDY = "check that it runs, and the address"

    def __init__(self, address: str, reason: str, attempts: int, seconds: float) -> None:
        super().__init__(address, reason, attempts, seconds)
        self.address = address
        self.reason = reason
        self.attempts = attempts
        self.seconds = seconds

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        tried = f"tried {times} in {self.seconds:.1f} s"
        return _one_line(f"{self._WHAT}: {self.address}: {self.reason}, {tried} ({self._REMEDY})")


class NoAnswerError(UnreachableError):
    """The server did not respond in time."""

    _WHAT = "no response in time"
    _REMEDY = "send fewer items, or raise timeout_seconds or retry_seconds"


class AnswerError(ClientError):
    """The response is not one of our routes': the address belongs to another server."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return _one_line(
            f"unexpected response: {self.address}: {self.reason}"
            " (check that the address is that of a server of the client's version)"
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())

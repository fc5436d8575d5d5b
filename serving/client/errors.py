"""What can go wrong with what a client asks, each said in one line, and never with its key."""

from serving.schemas.fields import Problem


class ClientError(Exception):
    """Something was asked of a server, and there is no answer; all others are of this kind."""


class RefusalError(ClientError):
    """A server's refusal, with the fields of its problem document.

    - `field` is where the mistake is, such as `inputs[3].text`: of a list that was divided among
      several requests, counted in the whole list
    - `attempts` and `seconds` say how often and for how long it was asked
    - `request_id` is what the server's log has of the last time
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
    """Nobody answers at an address: why, and how often and for how long it was tried."""

    _WHAT = "no server answers"
    _REMEDY = "see that it runs, and where"

    def __init__(self, address: str, reason: str, attempts: int, seconds: float) -> None:
        super().__init__(address, reason, attempts, seconds)
        self.address = address
        self.reason = reason
        self.attempts = attempts
        self.seconds = seconds

    def __str__(self) -> str:
        often = "once" if self.attempts == 1 else f"{self.attempts} times"
        tried = f"tried {often} in {self.seconds:.1f} s"
        return _one_line(f"{self._WHAT}: {self.address}: {self.reason}, {tried} ({self._REMEDY})")


class NoAnswerError(UnreachableError):
    """A server that was asked took longer than a client waits."""

    _WHAT = "no answer in time"
    _REMEDY = "ask for less at once, or give timeout_seconds or retry_seconds more"


class AnswerError(ClientError):
    """An answer that is none of ours: something else stands at the address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return _one_line(
            f"no answer of such a server: {self.address}: {self.reason}"
            " (see that the address is that of a server of the client's version)"
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())

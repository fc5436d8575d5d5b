"""What a client is opened with -> where it asks, what it shows there, how long it is patient."""

import re
from dataclasses import dataclass, field
from typing import Any

import httpx2

from bert_core.errors import UserError
from serving.client.exchange import Attempts

_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class ClientSettings:
    """Where a server is, the key to show there, and how it is asked.

    - `timeout_seconds`, within which each step of a request (to connect, to send, to be answered)
      has to be done
    - `retry_seconds`, for how long in all a request may be made again that failed for a while
    - `concurrency`, how many requests a list is asked in at once

    Raises `UserError` for an address or a key that is none.
    """

    address: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 60.0
    retry_seconds: float = 60.0
    concurrency: int = 4

    def __post_init__(self) -> None:
        url = self._url()
        is_server = url.scheme in ("http", "https") and url.host and (url.port or 0) < 1 << 16
        if not is_server or url.query or url.fragment:
            raise UserError(
                "no address of a server", repr(self.shown_address), "write it as http://HOST:PORT"
            )
        if self.api_key is not None and not _KEY.fullmatch(self.api_key):
            raise UserError(
                "no key",
                "api_key is empty, or has spaces or other signs that no key has",
                "give it as `python -m serving.new_key` has shown it",
            )
        if self.api_key is not None and url.userinfo:
            raise UserError(
                "two ways to say who asks", "api_key, and a name in the address", "leave one out"
            )
        for name, is_enough in (
            ("timeout_seconds", self.timeout_seconds > 0),
            ("retry_seconds", self.retry_seconds >= 0),
            ("concurrency", self.concurrency >= 1),
        ):
            if not is_enough:
                raise UserError("too small a number", name, "give a greater one")

    @property
    def shown_address(self) -> str:
        """The address without the user and password that may stand in it."""
        return re.sub(r"(?<=//).*@", "", self.address, flags=re.DOTALL).rstrip("/")

    @property
    def for_httpx(self) -> dict[str, Any]:
        """What both kinds of client of httpx2 are opened with."""
        shown = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"base_url": self._url(), "headers": shown | {"Accept": "application/json"}}

    def attempts(self) -> Attempts:
        """How often one request is made, and when."""
        return Attempts(self.shown_address, self.timeout_seconds, self.retry_seconds)

    def _url(self) -> httpx2.URL:
        try:
            return httpx2.URL(self.address)
        except (httpx2.InvalidURL, TypeError):
            return httpx2.URL()

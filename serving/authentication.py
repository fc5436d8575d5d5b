"""Who may ask: a server with keys lets in whoever shows one that is for what is asked."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import respond
from serving.keys import Keys
from serving.mounting import own_path
from serving.problems import RequestError
from serving.request_context import current_request
from serving.webhook import WEBHOOK_PATH

_OPEN = (
    *("/health", "/ready", "", "/", "/docs", "/openapi.json"),
    WEBHOOK_PATH,  # whoever posts there shows a signature instead
    *("/swagger/swagger-ui-bundle.js", "/swagger/swagger-ui.css", "/swagger/favicon-32x32.png"),
)
_OPEN_FILES = re.compile(r"/playground/\w+\.(js|css|svg)")
"""What the playground's page is made of; /info, which says what it shows, is not open."""
_FOR_ADMINS = ("/metrics",)
ADMIN_PREFIX = "/admin/"


class Authenticated:
    """ASGI middleware: 401 without a known key, 403 with one that is not for this address.

    A key stands in `Authorization: Bearer KEY` or in `X-API-Key`.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that may be made."""
        if scope["type"] == "http" and not _is_open(own_path(scope)):
            try:
                self._check(scope)
            except RequestError as error:
                await respond(scope, receive, send, error)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        kind, _, shown = headers.get(b"authorization", "").partition(" ")
        if kind.lower() != "bearer":
            shown = headers.get(b"x-api-key", "")
        key = self._keys.find(shown.strip())
        if key is None:
            raise RequestError(
                401,
                "No key" if not shown else "Unknown key",
                "this server answers those who have a key",
                field="Authorization",
                remedy="send it as Authorization: Bearer KEY",
            )
        wanted = "admin" if _is_for_admins(own_path(scope)) else "predict"
        if wanted not in key.record.scopes:
            raise RequestError(
                403,
                "Not for this key",
                f"{key.name} is for {' and '.join(key.record.scopes)}, not for {wanted}",
                field="Authorization",
                remedy="take another key",
            )
        request = current_request.get()
        if request is not None:
            request.payer = key


def _is_for_admins(path: str) -> bool:
    return path in _FOR_ADMINS or path.startswith(ADMIN_PREFIX)


def _is_open(path: str) -> bool:
    return path in _OPEN or _OPEN_FILES.fullmatch(path) is not None

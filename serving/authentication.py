"""Who may ask: a server with keys lets in whoever shows one that is for what is asked."""

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import respond
from serving.keys import Keys
from serving.problems import RequestError
from serving.request_context import current_request

_OPEN = (
    *("/health", "/ready", "/", "/docs", "/openapi.json"),
    *("/swagger/swagger-ui-bundle.js", "/swagger/swagger-ui.css", "/swagger/favicon-32x32.png"),
)
_FOR_ADMINS = ("/metrics",)


class Authenticated:
    """ASGI middleware: 401 without a known key, 403 with one that is not for this address.

    A key stands in `Authorization: Bearer KEY` or in `X-API-Key`.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that may be made."""
        if scope["type"] == "http" and scope["path"] not in _OPEN:
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
        wanted = "admin" if scope["path"] in _FOR_ADMINS else "predict"
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

"""Who may ask: API keys, browser pages of other origins (CORS), and known host names.

A page can pretend to be of this server's origin by making its own name stand for the server's
address (DNS rebinding). Only the `Host` header shows that.
"""

import re
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.addresses import address_of, host_of, is_loopback
from serving.errors import RequestError, respond
from serving.keys import Keys, RateLimitError
from serving.keys import Scope as KeyScope
from serving.request_context import current_request, own_path
from serving.rollout.admin import WEBHOOK_PATH

_OPEN = (
    *("/health", "/ready", "", "/", "/docs", "/openapi.json"),
    WEBHOOK_PATH,  # a signature takes the place of a key
    *("/swagger/swagger-ui-bundle.js", "/swagger/swagger-ui.css", "/swagger/favicon-32x32.png"),
)
_OPEN_FILES = re.compile(r"/playground/\w+\.(js|css|svg)")
"""The files of the playground's page; /info, which it shows, is not open."""
_FOR_ADMINS = ("/metrics",)
ADMIN_PREFIX = "/admin/"


class Authenticated:
    """ASGI middleware: 401 without a known key, 403 with one that is not for this address.

    429, before the body is read, to what is posted with a key that has no tokens left: tokenizing
    takes time, and is paid for only where the request is computed.

    A key stands in `Authorization: Bearer KEY` or in `X-API-Key`.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that may be made."""
        wanted = required_scope(own_path(scope)) if scope["type"] == "http" else None
        if wanted is not None:
            try:
                self._check(scope, wanted)
            except (RequestError, RateLimitError) as error:
                await respond(scope, receive, send, error)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, wanted: KeyScope) -> None:
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
            request.key = key
        if wanted == "predict" and scope["method"] == "POST":
            key.pay(0)


def required_scope(path: str) -> KeyScope | None:
    """The scope that a key needs for requests to this path; None where no key is needed."""
    if path in _OPEN or _OPEN_FILES.fullmatch(path):
        return None
    return "admin" if path in _FOR_ADMINS or path.startswith(ADMIN_PREFIX) else "predict"


_SHOWN_TO_PAGES = (
    *("X-Request-Id", "X-Model", "X-Model-Version", "X-N-Tokens", "X-Truncated"),
    "Retry-After",
)


def open_to_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Lets browser pages of these origins ask, and read the answers with their headers.

    It is around the check of keys, because a browser's preflight has none. Cookies are never
    taken.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=list(_SHOWN_TO_PAGES),
    )


class KnownHosts:
    """ASGI middleware: 421 for a `Host` that is not known.

    Known are the loopback names, the address that the connection has come to, which probes use,
    and the allowed hosts.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request to a host that is known."""
        if scope["type"] == "http" and not self._is_known(scope):
            await respond(scope, receive, send, _UNKNOWN_HOST)
            return
        await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"host"]
        host = host_of(given[0].decode("latin-1")) if len(given) == 1 else None
        if host is None:
            return False
        if is_loopback(host) or host in self._allowed:
            return True
        address, server = address_of(host), scope.get("server")
        return address is not None and server is not None and address == address_of(server[0])


_UNKNOWN_HOST = RequestError(
    421,
    "Unknown host",
    "this server is asked by localhost, its address or a name of its allowed_hosts",
    field="Host",
    remedy="ask by one of those, or start it with this name among allowed_hosts",
)

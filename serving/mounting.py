"""A server behind a prefix (Ray Serve's `route_prefix`, uvicorn's `root_path`) -> its own paths."""

from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


def own_path(scope: Scope) -> str:
    """The path of a request without the prefix; "" at the prefix itself, without a slash.

    The same as what Starlette looks for among the routes: who decides by it whether a path is open
    decides about what is then answered.
    """
    path, prefix = scope["path"], scope.get("root_path", "")
    rest = path.removeprefix(prefix)
    return rest if path.startswith(prefix) and rest[:1] in ("", "/") else path


class SlashAtPrefix:
    """ASGI middleware: `/prefix` goes on to `/prefix/`, by which the page there finds its files.

    The address is a relative one: whether the client asked by https, and whom, nobody here knows.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes all other requests on."""
        if scope["type"] == "http" and own_path(scope) == "":
            last = quote(scope["path"].rpartition("/")[2])
            answer = Response(status_code=307, headers={"Location": f"{last}/"})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

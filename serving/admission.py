"""Who is turned away under overload is so before being read, which costs next to nothing."""

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.batching import OverloadedError
from serving.engine import Engine
from serving.errors import respond


class Admission:
    """ASGI middleware: 429 to whatever is posted while every encoder has all that it may keep.

    To read a text and cut it into tokens costs ten times as much, and would take the processor
    from the requests that are let in.
    """

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes on a request that there is room for."""
        if scope["type"] == "http" and scope["method"] == "POST":
            try:
                self._engine.check_room()
            except OverloadedError as error:
                await respond(scope, receive, send, error)
                return
        await self._app(scope, receive, send)

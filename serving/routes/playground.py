"""The playground: a page on which a person tries the models in a browser, and what it is made of.

Its files come from the package and ask nobody but this server. They say nothing of the models and
need no key; what the page then asks does.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

_FOLDER = Path(__file__).parent.parent / "playground"
_PAGE = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

_HEADERS = {
    # Scripts and styles of this server alone, none within the page; text never becomes HTML.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, and asked for by its ETag
}


@dataclass(frozen=True)
class _File:
    """A file as it is answered with."""

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> "_File":
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, _MEDIA_TYPES[path.suffix], etag)


class PlaygroundRoutes:
    """The handlers; the files are read once, when it is made."""

    def __init__(self) -> None:
        paths = [each for each in _FOLDER.iterdir() if each.suffix in _MEDIA_TYPES]
        self._files = {each.name: _File.read(each) for each in paths}
        self._page = self._files.pop(_PAGE)

    @property
    def router(self) -> APIRouter:
        """The routes under their paths, none of which stands in the OpenAPI document."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/", self.page, methods=["GET"])
        router.add_api_route("/playground/{name}", self.file, methods=["GET"])
        return router

    async def page(self, request: Request) -> Response:
        """The page itself, at `/`, by which it finds its files wherever the server is mounted."""
        return _answer(request, self._page)

    async def file(self, request: Request, name: str) -> Response:
        """A script, a style or the icon."""
        if name not in self._files:
            raise HTTPException(404)
        return _answer(request, self._files[name])


def _answer(request: Request, file: _File) -> Response:
    headers = _HEADERS | {"ETag": file.etag}
    known = request.headers.get("If-None-Match", "")
    if file.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)

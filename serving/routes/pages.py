"""Pages for a browser: the playground at `/`, and Swagger UI at `/docs`.

Their files come from packages, so that a page asks nobody but this server, by relative addresses:
these hold behind a prefix, and where TLS ends before this server.
"""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
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
    """A file with its headers."""

    content: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> "_File":
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, _MEDIA_TYPES[path.suffix], etag)


def _answer(request: Request, file: _File) -> Response:
    headers = _HEADERS | {"ETag": file.etag}
    known = request.headers.get("If-None-Match", "")
    if file.etag in [etag.strip().removeprefix("W/") for etag in known.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


_SWAGGER_PACKAGE = "fastapi_swagger.resources"
_SCRIPT, _STYLE, _ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"
_SWAGGER_TYPES = {_SCRIPT: "text/javascript", _STYLE: "text/css", _ICON: "image/png"}
_SWAGGER_SETTINGS = {
    "tryItOutEnabled": True,
    "persistAuthorization": True,
    "filter": True,
    "displayRequestDuration": True,
}


class PageRoutes:
    """The handlers; the files are read once, when it is made."""

    def __init__(self, title: str) -> None:
        paths = [path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES]
        self._files = {path.name: _File.read(path) for path in paths}
        self._playground = self._files.pop(_PAGE)
        page = get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{title} - Swagger UI",
            swagger_js_url=f"swagger/{_SCRIPT}",
            swagger_css_url=f"swagger/{_STYLE}",
            swagger_favicon_url=f"swagger/{_ICON}",
            swagger_ui_parameters=_SWAGGER_SETTINGS,
        )
        self._documentation = bytes(page.body)
        package = resources.files(_SWAGGER_PACKAGE)
        self._swagger = {name: package.joinpath(name).read_bytes() for name in _SWAGGER_TYPES}

    @property
    def router(self) -> APIRouter:
        """The routes under their paths, none of which stands in the OpenAPI document."""
        router = APIRouter(include_in_schema=False)
        for path, handler in (
            ("/", self.playground),
            ("/playground/{name}", self.playground_file),
            ("/docs", self.documentation),
            ("/swagger/{name}", self.swagger_file),
        ):
            router.add_api_route(path, handler, methods=["GET"])
        return router

    async def playground(self, request: Request) -> Response:
        """The page at `/`, from which it finds its files wherever the server is mounted."""
        return _answer(request, self._playground)

    async def playground_file(self, request: Request, name: str) -> Response:
        """A script, a style or the icon."""
        if name not in self._files:
            raise HTTPException(404)
        return _answer(request, self._files[name])

    async def documentation(self) -> Response:
        """The page of the document at `openapi.json`."""
        return Response(self._documentation, media_type="text/html")

    async def swagger_file(self, name: str) -> Response:
        """Its script, its style or its icon."""
        if name not in self._swagger:
            raise HTTPException(404)
        return Response(self._swagger[name], media_type=_SWAGGER_TYPES[name])

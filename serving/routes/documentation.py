"""The API's page at `/docs`: Swagger UI from the package, so that no other server is asked.

Its addresses are relative ones: they hold behind a prefix, and where TLS ends before this server.
"""

from importlib import resources

from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException

_PACKAGE = "fastapi_swagger.resources"
_SCRIPT, _STYLE, _ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"
_MEDIA_TYPES = {_SCRIPT: "text/javascript", _STYLE: "text/css", _ICON: "image/png"}
_SETTINGS = {
    "tryItOutEnabled": True,
    "persistAuthorization": True,
    "filter": True,
    "displayRequestDuration": True,
}


class DocumentationRoutes:
    """The page of the document at `openapi.json`; its files are read when it is made."""

    def __init__(self, title: str) -> None:
        page = get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{title} - Swagger UI",
            swagger_js_url=f"swagger/{_SCRIPT}",
            swagger_css_url=f"swagger/{_STYLE}",
            swagger_favicon_url=f"swagger/{_ICON}",
            swagger_ui_parameters=_SETTINGS,
        )
        self._page = bytes(page.body)
        package = resources.files(_PACKAGE)
        self._files = {name: package.joinpath(name).read_bytes() for name in _MEDIA_TYPES}

    @property
    def router(self) -> APIRouter:
        """The routes under their paths, none of which stands in the OpenAPI document."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/docs", self.page, methods=["GET"])
        router.add_api_route("/swagger/{name}", self.file, methods=["GET"])
        return router

    async def page(self) -> Response:
        """The page itself."""
        return Response(self._page, media_type="text/html")

    async def file(self, name: str) -> Response:
        """Its script, its style or its icon."""
        if name not in self._files:
            raise HTTPException(404)
        return Response(self._files[name], media_type=_MEDIA_TYPES[name])

"""Which pages in browsers may ask: none, but those of the origins that are named (CORS)."""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import FastAPI
from pydantic import AfterValidator
from starlette.middleware.cors import CORSMiddleware

_SHOWN_TO_PAGES = ("X-Request-Id", "X-N-Tokens", "X-Truncated", "Retry-After")


def _is_origin(given: str) -> str:
    parts = urlsplit(given)
    written = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()
    if parts.scheme not in ("http", "https") or not parts.hostname or given != written:
        raise ValueError(
            f"{given!r} is no origin: write scheme, host and port alone, https://a.example"
        )
    return given


Origin = Annotated[str, AfterValidator(_is_origin)]
"""Scheme, host and port of a page, as a browser sends it: `https://a.example`, never `*`."""


def open_to_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Has browsers let pages of these origins ask, and read the answers with their headers.

    Around what asks for keys: a browser's preflight has none. Whoever needs a key needs it here
    too; cookies are never taken.
    """
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=list(_SHOWN_TO_PAGES),
    )

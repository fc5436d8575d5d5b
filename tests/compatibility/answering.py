"""A server of the model folders among the fixtures, and what of its answers has to stay."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from fixture_places import MODELS
from running import Server, start

from serving.engine import Engine
from serving.models import close_models, load_models

WORDING = {"detail", "title", "remedy", "error", "message"}
"""Fields of refusals whose sentences may change; that they are there may not."""
PASSING = {"created"}
"""Fields that tell when a file was written."""
VECTORS = {"vector", "embedding"}
PAGES = ("/metrics", "/docs", "/", "/openapi.json", "/playground/app.js")
HEADERS = ("content-type", "retry-after", "allow")


@contextmanager
def served() -> Iterator[Server]:
    """All model folders behind one server in this process."""
    folders = {each.name: each for each in sorted(MODELS.iterdir())}
    models = load_models(folders)
    running, stop = start(Engine(models), folders)
    yield running
    stop()
    close_models(list(models.values()))


def recorded_answer(server: Server, request: Mapping[str, Any]) -> dict[str, Any]:
    """Status, headers and content of an answer, without what may differ."""
    status, content, headers = server.ask_whole(
        request["path"], request.get("body"), method=request["method"]
    )
    kept = {
        name.lower(): value
        for name, value in headers.items()
        if name.lower() in HEADERS or name.lower().startswith(("x-model", "x-n-", "x-trunc"))
    }
    if request["path"] in PAGES:
        content = None
    elif isinstance(content, bytes):
        content = content.decode()
    if "base64" in (request.get("body") or {}).values() and status == 200:
        content = decoded(content)
    return {"status": status, "headers": kept, "content": without_wording(content, status)}


def decoded(content: Any) -> Any:
    """The content with vectors in base64 as lists of numbers, which compare with a tolerance."""
    if isinstance(content, dict):
        return {
            name: decoded(each) if isinstance(each, dict | list) or name in VECTORS else each
            for name, each in content.items()
        }
    if isinstance(content, list):
        return [decoded(each) for each in content]
    return {"base64": np.frombuffer(base64.b64decode(content), "<f4").tolist()}


def without_wording(content: Any, status: int) -> Any:
    """The content with the sentences of refusals, and times, replaced by null."""
    if isinstance(content, list):
        return [without_wording(each, status) for each in content]
    if not isinstance(content, dict):
        return content
    hidden = PASSING | (WORDING if status >= 400 else set())
    return {
        name: None
        if name in hidden and not isinstance(each, dict)
        else without_wording(each, status)
        for name, each in content.items()
    }


def normalized_document(server: Server) -> dict[str, Any]:
    """Parameters, fields and statuses of each method and path, as the OpenAPI document has them."""
    _, document = server.ask("/openapi.json")
    schemas = document["components"]["schemas"]
    found = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            found[f"{method} {path}"] = {
                "parameters": sorted(each["name"] for each in operation.get("parameters", [])),
                "fields": sorted(schemas.get(name, {}).get("properties", {})),
                "required": sorted(schemas.get(name, {}).get("required", [])),
                "statuses": sorted(operation["responses"]),
            }
    return found

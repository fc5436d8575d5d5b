"""Routes that take and give JSON: how they are registered, and how answers are written.

Short answers are written at once, long ones in pieces off the event loop: millions of numbers take
seconds, and one call for all of them lets no other thread run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from bert_core.errors import nearest
from serving.engine import Engine, Prediction, TextFeatures
from serving.errors import PROBLEMS, RequestError

Handlers = Mapping[str, tuple[Callable[..., Any], type[BaseModel]]]
"""The handler of each path, and the answer that it gives."""


class Routes:
    """Handlers over the models of an engine; `router` has them under their paths."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


def own_router(handlers: Mapping[str, Handlers]) -> APIRouter:
    """Our own routes, by their tags: JSON by POST, with their answers and refusals."""
    router = APIRouter()
    for tag, tagged in handlers.items():
        for path, (handler, answer) in tagged.items():
            router.add_api_route(
                *(path, handler),
                methods=["POST"],
                tags=[tag],
                response_model=answer,
                responses=PROBLEMS,
                dependencies=[Depends(refuse_parameters)],  # not the router's: others are put in it
            )
    return router


KNOWN = ("model",)
"""All that the routes of Hugging Face and TEI have."""


async def refuse_unknown_parameters(request: Request) -> None:
    """For a router's `dependencies`: raises `RequestError` for the first that is unknown."""
    remedy = "?model=NAME chooses a model, everything else is in the body"
    for name in request.query_params:
        if name not in KNOWN:
            raise _unknown(name, nearest(name, KNOWN), remedy)


async def refuse_parameters(request: Request) -> None:
    """The same for our own routes, which have all in the body: an ignored model would be wrong."""
    for name in request.query_params:
        raise _unknown(name, "", 'everything is in the body; "model" there chooses a model')


def _unknown(name: str, similar: str, remedy: str) -> RequestError:
    detail = f"this address does not have it{similar}"
    return RequestError(422, "Unknown query parameter", detail, field=name[:64], remedy=remedy)


_MEDIA_TYPE = "application/json"
_BYTES_AT_ONCE = 256 << 10


async def answered(
    engine: Engine, build: Callable[[], Any], headers: Mapping[str, str] | None = None
) -> Response:
    """The answer that `build` gives: a model of ours, or JSON in which arrays stand for lists.

    Fields of models that are None are left out. Where the engine has found much, the answer is
    built and written off the event loop.
    """
    if not engine.answer_is_long:
        return Response(_written(build()), media_type=_MEDIA_TYPE, headers=headers)
    return await answered_apart(engine, build, headers)


async def answered_apart(
    engine: Engine, build: Callable[[], Any], headers: Mapping[str, str] | None = None
) -> Response:
    """The same, always off the event loop, for answers that take long to build."""
    body = await engine.run_apart(lambda: _in_pieces(build()))
    return _LongResponse(memoryview(body), media_type=_MEDIA_TYPE, headers=headers)


def read_headers(texts: Sequence[Prediction | TextFeatures]) -> dict[str, str]:
    """Headers that say how many tokens texts have, and whether any of them lost some."""
    num_tokens, is_cut = sum(text.num_tokens for text in texts), any(t.truncated for t in texts)
    return {"X-N-Tokens": str(num_tokens), "X-Truncated": str(is_cut).lower()}


class _LongResponse(Response):
    """An answer that is sent as fast as its client reads, without a copy in a buffer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        for begin in range(0, len(self.body), _BYTES_AT_ONCE):
            part = bytes(self.body[begin : begin + _BYTES_AT_ONCE])
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _written(content: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(content, BaseModel):
        return content.model_dump_json(exclude_none=True)
    return json.dumps(
        content,
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
        default=np.ndarray.tolist,
    )


def _in_pieces(content: Any) -> bytearray:  # noqa: ANN401 - any JSON
    body = bytearray()
    _write(content, body)
    return body


_as_json = partial(to_json, inf_nan_mode="null")  # as models have it


def _write(content: Any, body: bytearray) -> None:  # noqa: ANN401 - any JSON
    """Appends JSON in small parts, because each call holds the interpreter's lock."""
    match content:
        case np.ndarray() if content.ndim == 1:
            body += _as_json(content.tolist())
        case list() | np.ndarray() if len(content) and not isinstance(
            content[0], str | int | float
        ):
            for number, entry in enumerate(content):
                body += b"," if number else b"["
                _write(entry, body)
            body += b"]"
        case dict() | BaseModel():
            # As `model_dump_json(exclude_none=True)` has it.
            items = content.items() if isinstance(content, dict) else iter(content)
            body += b"{"
            separator = b""
            for name, value in items:
                if value is None and isinstance(content, BaseModel):
                    continue
                body += separator + _as_json(name) + b":"
                _write(value, body)
                separator = b","
            body += b"}"
        case _:
            body += _as_json(content)

"""Divides the items of one call into requests within the server's limits, and joins the results."""

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Generic

from pydantic import BaseModel, ValidationError

from serving.client.exchange import (
    AnswerError,
    RefusalError,
    Reply,
    Request,
    is_answer,
    problem_in,
    refused,
    wrong_field,
)
from serving.client.routes import R, Route
from serving.limits import Limits
from serving.schemas import Problem

_TOO_LARGE = 413
_LARGE_BYTES = 256 << 10
"""Before a larger body is sent, the limits are requested: the server may close the connection."""
_BYTES_OF_A_TOKEN = 4
"""About right for English; texts with fewer are divided after a refusal."""


@dataclass(frozen=True)
class Part:
    """The items [start, end) of one request."""

    start: int
    end: int


class Inquiry(Generic[R]):
    """The items and results of one call: `take` a part, send its `request`, `put` the reply.

    `fixed` is sent with the options. Raises `TypeError` for an option that the route does not have.
    """

    def __init__(
        self,
        route: Route[R],
        inputs: object,
        options: Mapping[str, object],
        address: str,
        fixed: Mapping[str, object] | None = None,
    ) -> None:
        known = route.options.__annotations__
        if unknown := options.keys() - known.keys():
            raise TypeError(f"{route.path} has no option {min(unknown)}; it has {', '.join(known)}")
        self._route = route
        self._address = address
        self.is_list = _is_list(route, inputs)
        items: Sequence[Any] = inputs if self.is_list else [inputs]  # pyright: ignore[reportAssignmentType] - a list, as tested above
        self._items = [encoded(item) for item in items]
        given = {name: value for name, value in options.items() if value is not None}
        self._options = encoded({**given, **(fixed or {}), **route.fixed})
        self._waiting = deque([Part(0, len(items))] if items else [])
        self._results: list[R | None] = [None] * len(items)
        self._max_items = 1 if route.takes == "one" else len(items)
        self._max_bytes = sum(map(len, self._items)) + len(items)

    @property
    def is_large(self) -> bool:
        """Whether it may exceed what a server accepts in one request."""
        return self._max_items > 1 or self._max_bytes + len(self._options) > _LARGE_BYTES

    @property
    def results(self) -> R | list[R]:
        """The result of the item, or those of the list."""
        results = [result for result in self._results if result is not None]
        return results if self.is_list else results[0]

    def keep_within(self, limits: Limits) -> None:
        """Bounds the parts; raises `RefusalError` for an item that alone exceeds the limits."""
        around = len(self._options) + len(f',"{self._route.field}":[]')
        room = limits.max_body_bytes - around
        for number, item in enumerate(self._items):
            if len(item) > room:
                raise RefusalError(
                    Problem(
                        title="Body too large",
                        status=_TOO_LARGE,
                        detail=f"{len(item) + around} bytes, limit {limits.max_body_bytes}",
                        field=self._name(number) if room > 2 else None,
                        remedy="shorten the item",
                    )
                )
        of_tokens = limits.max_request_tokens * _BYTES_OF_A_TOKEN
        self._max_bytes = min(self._max_bytes, room, of_tokens)
        self._max_items = min(self._max_items, max(1, limits.max_items - self._route.extra_texts))

    def take(self) -> Part | None:
        """Removes and returns the next part to send; None if there is none."""
        if not self._waiting:
            return None
        whole = self._waiting.popleft()
        most = min(whole.end, whole.start + self._max_items)
        sizes = accumulate(len(item) + 1 for item in self._items[whole.start : most])
        fitting = sum(1 for _ in takewhile(lambda size: size <= self._max_bytes, sizes))
        part = Part(whole.start, whole.start + max(1, fitting))
        if part.end < whole.end:
            self._waiting.appendleft(Part(part.end, whole.end))
        return part

    def request(self, part: Part) -> Request:
        """Builds the request of a part."""
        items = b",".join(self._items[part.start : part.end])
        if self._goes_as_list:
            items = b"[" + items + b"]"
        comma = b"," if len(self._options) > 2 else b""
        field = encoded(self._route.field)
        body = self._options[:-1] + comma + field + b":" + items + b"}"
        return Request("POST", self._route.path, body)

    def put(self, part: Part, reply: Reply) -> None:
        """Stores the results of a part; divides a part that was refused as too large.

        Raises `RefusalError`, or `AnswerError` for a body that this route cannot have sent.
        """
        if reply.status == _TOO_LARGE and part.end - part.start > 1:
            size = sum(len(item) + 1 for item in self._items[part.start : part.end])
            self._max_bytes = min(self._max_bytes, size // 2)
            self._waiting.appendleft(part)
            return
        if not is_answer(reply):
            problem = problem_in(reply)
            problem.field = self._field_in_whole(problem.field, part)
            raise refused(problem, reply)
        try:
            content = json.loads(reply.body)
            if "version" not in content:
                content["version"] = reply.headers.get("X-Model-Version") or None
            results = self._route.read(content)
        except ValidationError as error:
            raise AnswerError(self._address, wrong_field(error)) from None
        except (ValueError, TypeError, KeyError):
            raise AnswerError(self._address, "not JSON with results") from None
        if len(results) != part.end - part.start:
            reason = f"{len(results)} results for {part.end - part.start} items"
            raise AnswerError(self._address, reason)
        self._results[part.start : part.end] = results

    @property
    def _goes_as_list(self) -> bool:
        return self.is_list if self._route.takes == "any" else self._route.takes == "list"

    def _field_in_whole(self, field: str | None, part: Part) -> str | None:
        """Converts a field of a part's request to one of the whole list.

        `inputs[3]` of a part that starts at 256 is `inputs[259]`.
        """
        name = self._route.field
        match = re.fullmatch(rf"{name}(?:\[(\d+)\])?(.*)", field or "", re.DOTALL)
        if match is None:
            return field
        number, rest = match.groups()
        is_alone = part.end - part.start == 1
        if name == "ids" and number is not None and not rest and is_alone:
            return f"{self._name(part.start)}[{number}]"  # of a single list of ids
        if number is None and not is_alone:
            return field
        return f"{self._name(part.start + int(number or 0))}{rest}"

    def _name(self, number: int) -> str:
        return f"{self._route.field}[{number}]" if self.is_list else self._route.field


def encoded(value: object) -> bytes:
    """Encodes compact JSON: UTF-8, or ASCII for a lone surrogate, which the server then refuses."""
    try:
        text = json.dumps(value, default=_fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, default=_fields, separators=(",", ":")).encode()


def _fields(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"items are texts, pairs, questions or ids, not {type(value).__name__}")


def _is_list(route: Route[Any], inputs: object) -> bool:
    """Whether there are several items; one item of token ids is a list itself."""
    if not isinstance(inputs, list | tuple):
        return False
    return route.field != "ids" or any(isinstance(item, list | tuple) for item in inputs)

"""Items that are asked about -> requests that a server takes, and back: results in their order."""

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Generic

from pydantic import BaseModel, ValidationError

from serving.client.answers import is_answer, problem_in, refused, wrong_field
from serving.client.errors import AnswerError, RefusalError
from serving.client.exchange import Reply, Request
from serving.client.routes import R, Route
from serving.limits import Limits
from serving.schemas.fields import Problem

_TOO_MUCH = 413
_LARGE_BYTES = 256 << 10
"""Before so much is sent, a server is asked how much it takes: it may hang up on more."""
_BYTES_OF_A_TOKEN = 4
"""About as many a token of English has; whoever has less is divided when that is refused."""


@dataclass(frozen=True)
class Part:
    """The items from `start` up to before `end`, which are asked about in one request."""

    start: int
    end: int


class Inquiry(Generic[R]):
    """What is asked in one call: parts are taken, and put back with what became of them.

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
        items: Sequence[Any] = inputs if self.is_list else [inputs]  # pyright: ignore[reportAssignmentType] - a list, as was seen
        self._items = [encoded(each) for each in items]
        given = {name: value for name, value in options.items() if value is not None}
        self._beside = encoded({**given, **(fixed or {}), **route.fixed})
        self._waiting = deque([Part(0, len(items))] if items else [])
        self._results: list[R | None] = [None] * len(items)
        self._max_items = 1 if route.takes == "one" else len(items)
        self._max_bytes = sum(map(len, self._items)) + len(items)

    @property
    def is_large(self) -> bool:
        """Whether it may be more than a server takes at once."""
        return self._max_items > 1 or self._max_bytes + len(self._beside) > _LARGE_BYTES

    @property
    def results(self) -> R | list[R]:
        """The result of the item, or those of the list."""
        found = [each for each in self._results if each is not None]
        return found if self.is_list else found[0]

    def keep_within(self, limits: Limits) -> None:
        """Has parts be no larger than a server takes them; raises `RefusalError` where they are."""
        around = len(self._beside) + len(f',"{self._route.field}":[]')
        room = limits.max_body_bytes - around
        for number, item in enumerate(self._items):
            if len(item) > room:
                raise RefusalError(
                    Problem(
                        title="Too large a body",
                        status=_TOO_MUCH,
                        detail=f"{len(item) + around} bytes, and a request has"
                        f" {limits.max_body_bytes} at most",
                        field=self._name(number) if room > 2 else None,
                        remedy="shorten what is asked",
                    )
                )
        of_tokens = limits.max_request_tokens * _BYTES_OF_A_TOKEN
        self._max_bytes = min(self._max_bytes, room, of_tokens)
        self._max_items = min(self._max_items, max(1, limits.max_items - self._route.beside))

    def take(self) -> Part | None:
        """The next part that is to be asked about."""
        if not self._waiting:
            return None
        whole = self._waiting.popleft()
        most = min(whole.end, whole.start + self._max_items)
        sizes = accumulate(len(each) + 1 for each in self._items[whole.start : most])
        fitting = sum(1 for _ in takewhile(lambda size: size <= self._max_bytes, sizes))
        part = Part(whole.start, whole.start + max(1, fitting))
        if part.end < whole.end:
            self._waiting.appendleft(Part(part.end, whole.end))
        return part

    def request(self, part: Part) -> Request:
        """The request of a part."""
        items = b",".join(self._items[part.start : part.end])
        if self._goes_as_list:
            items = b"[" + items + b"]"
        comma = b"," if len(self._beside) > 2 else b""
        field = encoded(self._route.field)
        body = self._beside[:-1] + comma + field + b":" + items + b"}"
        return Request("POST", self._route.path, body)

    def put(self, part: Part, reply: Reply) -> None:
        """Takes what became of a part; what was too much at once is divided.

        Raises `RefusalError`, or `AnswerError` for an answer that is none of this route's.
        """
        if reply.status == _TOO_MUCH and part.end - part.start > 1:
            size = sum(len(each) + 1 for each in self._items[part.start : part.end])
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
                content["version"] = reply.headers.get("X-Model-Version")
            found = self._route.read(content)
        except ValidationError as error:
            raise AnswerError(self._address, wrong_field(error)) from None
        except (ValueError, TypeError, KeyError):
            raise AnswerError(self._address, "no JSON with results") from None
        if len(found) != part.end - part.start:
            reason = f"{len(found)} results for {part.end - part.start} items"
            raise AnswerError(self._address, reason)
        self._results[part.start : part.end] = found

    @property
    def _goes_as_list(self) -> bool:
        """Whether the items of a request go as a list."""
        return self.is_list if self._route.takes == "any" else self._route.takes == "list"

    def _field_in_whole(self, field: str | None, part: Part) -> str | None:
        """A field of a part's request as one of the whole.

        `inputs[3]` of items that begin at 256 is `inputs[259]`.
        """
        name = self._route.field
        found = re.fullmatch(rf"{name}(?:\[(\d+)\])?(.*)", field or "", re.DOTALL)
        if found is None:
            return field
        number, rest = found.groups()
        is_alone = part.end - part.start == 1
        if name == "ids" and number is not None and not rest and is_alone:
            return f"{self._name(part.start)}[{number}]"  # of a single list of ids
        if number is None and not is_alone:
            return field
        return f"{self._name(part.start + int(number or 0))}{rest}"

    def _name(self, number: int) -> str:
        return f"{self._route.field}[{number}]" if self.is_list else self._route.field


def encoded(value: object) -> bytes:
    """JSON, short: in UTF-8, or in ASCII where there is half a character, for the server to say."""
    try:
        text = json.dumps(value, default=_fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, default=_fields, separators=(",", ":")).encode()


def _fields(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"no text, nor anything else that can be asked about: {type(value).__name__}")


def _is_list(route: Route[Any], inputs: object) -> bool:
    """Whether several items are given; of ids one item is a list itself."""
    if not isinstance(inputs, list | tuple):
        return False
    return route.field != "ids" or any(isinstance(each, list | tuple) for each in inputs)

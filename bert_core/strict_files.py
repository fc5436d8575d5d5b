"""Reads small files from elsewhere, bounded and strictly, or refuses them in one line.

`read_json_object` for JSON, `read_strict_yaml` for handwritten YAML with line numbers,
`read_bounded` for the bytes of any other small file.
"""

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError
from bert_core.text_encoding import decode_text, lone_surrogate

if TYPE_CHECKING:
    import yaml
    from yaml.nodes import Node

MAX_BYTES = 1 << 24
"""Of a file where nothing else is said: a configuration with 100,000 labels has a third of it."""

MAX_DEPTH = 64
"""Of lists and objects in one another; model folders have about ten."""

MAX_YAML_BYTES = 1 << 22
_MAX_YAML_NODES, _MAX_YAML_DEPTH = 200_000, 64

RESTORE = "restore the file"

_SURROGATE = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def read_json_object(
    path: Path,
    remedy: str = RESTORE,
    *,
    error: type[UserError] = UserError,
    max_bytes: int = MAX_BYTES,
    allow_nan: bool = False,
    is_optional: bool = False,
) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is none and it `is_optional`.

    Raises `error` for a file that is missing, not a regular file or too large, and for what is not
    UTF-8, no JSON, nested deeper than `MAX_DEPTH`, has a key twice, a number that is not finite
    (unless `allow_nan`, for what our own programs write), a half of a surrogate pair, or is no
    object.
    """
    if is_optional and not os.path.lexists(path):  # a link that leads nowhere is there
        return {}
    content = read_json(path, remedy, error=error, max_bytes=max_bytes, allow_nan=allow_nan)
    if not isinstance(content, dict):
        raise error(f"expected a JSON object, found {_kind(content)}", str(path), remedy)
    return content


def read_json(
    path: Path,
    remedy: str = RESTORE,
    *,
    error: type[UserError] = UserError,
    max_bytes: int = MAX_BYTES,
    allow_nan: bool = False,
) -> Any:  # noqa: ANN401 - whatever JSON holds
    """As `read_json_object`, of a file that may hold anything."""
    content = read_bounded(path, remedy, error=error, max_bytes=max_bytes)
    return parse_json(content, str(path), remedy, error=error, allow_nan=allow_nan)


def parse_json(
    content: bytes,
    where: str,
    remedy: str = RESTORE,
    *,
    error: type[UserError] = UserError,
    allow_nan: bool = False,
) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Reads JSON from bytes; raises `error` as `read_json_object` does."""
    try:
        text = content.decode("utf-8")
        numbers = {} if allow_nan else {"parse_constant": _refuse, "parse_float": _finite}
        value = json.loads(text, object_pairs_hook=_without_repetition, **numbers)
        _check_depth(value)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise error(f"JSON nested deeper than {MAX_DEPTH}", where, remedy) from None
    except UnicodeError as cause:
        raise error("text that is not UTF-8", where, remedy) from cause
    except ValueError as cause:
        raise error(f"damaged JSON, {_first_line(cause)}", where, remedy) from cause
    return value


def read_bounded(
    path: Path,
    remedy: str = RESTORE,
    *,
    error: type[UserError] = UserError,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """The bytes of a regular file of at most `max_bytes`; never waits, as reading a pipe would.

    Raises `error` for anything else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise error("not a regular file", str(path), remedy)
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as cause:  # ValueError: a NUL in the name
        reason = getattr(cause, "strerror", None) or _first_line(cause)
        raise error(f"cannot be read ({reason})", str(path), remedy) from cause
    if len(content) > max_bytes:
        raise error(f"a file larger than {max_bytes:,} bytes", str(path), remedy)
    return content


def _without_repetition(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{name[:60]!r} is repeated")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:60]} is too large")
    return number


def _check_depth(value: object) -> None:
    """Raises `RecursionError`, as the parser does where it has to go much deeper."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += [part for part in each.values() if isinstance(part, dict | list)]
            elif isinstance(each, list):
                below += [part for part in each if isinstance(part, dict | list)]
        if not below:
            return
        level = below
    raise RecursionError


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def read_strict_yaml(path: Path) -> tuple[Any, "Node"]:
    """Returns the content with every scalar as text, and its nodes for `line_of`.

    So `[yes, no]` are words and `1` may be a label; who wants a number converts it. Raises
    `UserError` for what is no YAML, empty, or has a key twice.
    """
    import yaml

    content = read_bounded(path, "give a file of YAML", max_bytes=MAX_YAML_BYTES)
    document = _yaml_document(yaml.BaseLoader, decode_text(content, str(path)), str(path))
    if document is None:
        raise UserError("an empty file", str(path), "write something into it")
    return document


def parse_yaml(content: bytes | str, where: str) -> Any:  # noqa: ANN401 - whatever YAML holds
    """The content of YAML whose scalars have types, as `yaml.safe_load` has it; None of nothing.

    Raises `UserError` for what is no YAML, not UTF-8, too large or has a key twice.
    """
    import yaml

    if len(content) > MAX_YAML_BYTES:
        raise _too_much_yaml(where)
    text = decode_text(content, where) if isinstance(content, bytes) else content
    try:
        document = _yaml_document(yaml.SafeLoader, text, where)
    # Dates, numbers and tags that are none of their kind.
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"not YAML, {reason}", where, "put such values in quotes") from error
    return None if document is None else document[0]


def _yaml_document(
    loader_type: "type[yaml.BaseLoader | yaml.SafeLoader]", text: str, where: str
) -> tuple[Any, "Node"] | None:
    import yaml

    try:
        loader = loader_type(text)
    except yaml.YAMLError as error:
        raise UserError("no text", where, "write UTF-8 without control characters") from error
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_unbounded_yaml(root, where)
        _refuse_repeated_keys(root, where)
        return loader.construct_document(root), root
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from error
    except RecursionError:
        raise _too_much_yaml(where) from None
    finally:
        loader.dispose()


def _not_yaml(error: Any, where: str) -> UserError:  # noqa: ANN401 - YAMLError, imported late
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
    place = where if mark is None else f"{where}:{mark.line + 1}"
    return UserError(f"not YAML, {' '.join(reason.split())[:200]}", place, "fix the line")


def _too_much_yaml(where: str) -> UserError:
    return UserError("too much YAML, or nested too deep", where, "write less, without aliases")


def _refuse_unbounded_yaml(root: "Node", where: str) -> None:
    """Raises `UserError` for what is endless once aliases are followed."""
    level, count = [root], 0
    for _ in range(_MAX_YAML_DEPTH):
        below: list[Node] = []
        for node in level:
            for part in node.value if isinstance(node.value, list) else []:
                below += part if isinstance(part, tuple) else [part]
            if len(below) > _MAX_YAML_NODES:
                raise _too_much_yaml(where)
        count += len(below)
        if count > _MAX_YAML_NODES:
            raise _too_much_yaml(where)
        if not below:
            return
        level = below
    raise _too_much_yaml(where)


def line_of(root: "Node", place: Sequence[str | int]) -> int:
    """Returns the line, from 1, of a place given by keys and indices from the root.

    For a missing place, the line of the last part of the path that exists.
    """
    node, line = root, root.start_mark.line
    for part in place:
        if isinstance(part, int) and isinstance(node.value, list):
            node = node.value[part]
            line = node.start_mark.line
            continue
        for key, value in _yaml_pairs(node):
            if key.value == part:
                node, line = value, key.start_mark.line
    return line + 1


def _yaml_pairs(node: "Node") -> list[tuple["Node", "Node"]]:
    parts = node.value if isinstance(node.value, list) else []
    return [part for part in parts if isinstance(part, tuple)]


def _refuse_repeated_keys(node: "Node", path: str) -> None:
    keys = set()
    for key, value in _yaml_pairs(node):
        if str(key.value) in keys:
            where = f"{path}:{key.start_mark.line + 1}"
            raise UserError(f"{key.value} stands here twice", where, "keep one")
        keys.add(str(key.value))
        _refuse_repeated_keys(value, path)
    for part in node.value if isinstance(node.value, list) else []:
        if not isinstance(part, tuple):
            _refuse_repeated_keys(part, path)


def is_plain_name(name: object) -> bool:
    """Tells whether a name read from a file stays in the same folder, on any system.

    No separator of any system, no `..`, no drive, no control character.
    """
    return isinstance(name, str) and is_plain_path(name) and len(PurePosixPath(name).parts) == 1


def is_plain_path(name: object) -> bool:
    """As `is_plain_name`, of a file in the folder or in a folder below it."""
    if not isinstance(name, str) or not name or len(name) > 1000 or _CONTROL.search(name):
        return False
    path = PurePosixPath(name)
    return (
        "\\" not in name
        and not PureWindowsPath(name).drive
        and not path.is_absolute()
        and str(path) == name
        and name != "."
        and ".." not in path.parts
        and lone_surrogate(name) is None
    )


def first_fault(error: Any) -> str:  # noqa: ANN401 - pydantic's ValidationError, not imported here
    """Returns the first error of a `pydantic.ValidationError`: the field and the reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part)[:60] for part in first["loc"])
    return _first_line(f"{field}: {first['msg']}" if field else first["msg"])


def _first_line(cause: object) -> str:
    return " ".join(str(cause).split())[:200]

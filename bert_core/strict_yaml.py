"""Strict YAML: reads handwritten files with line numbers; refuses duplicate keys and huge input."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError
from bert_core.strict_json import read_bounded
from bert_core.text_encoding import decode_text

if TYPE_CHECKING:
    from yaml.nodes import Node

MAX_BYTES = 1 << 22
"""Largest size of a file."""

_MAX_NODES, _MAX_DEPTH = 200_000, 64


def read_strict_yaml(path: Path) -> tuple[Any, "Node"]:
    """Returns the content with every scalar as text, and its nodes for `line_of`.

    So `[yes, no]` are words and `1` may be a label; who wants a number converts it. Raises
    `UserError` for what is no YAML, empty, or has a key twice.
    """
    import yaml

    content = read_bounded(path, "give a file of YAML", max_bytes=MAX_BYTES)
    try:
        loader = yaml.BaseLoader(decode_text(content, str(path)))
    except yaml.YAMLError as error:
        raise UserError("no text", str(path), "write UTF-8 without control characters") from error
    try:
        root = loader.get_single_node()
        if root is None:
            raise UserError("an empty file", str(path), "write something into it")
        _refuse_unbounded(root, str(path))
        _refuse_repeated_keys(root, str(path))
        return loader.construct_document(root), root
    except yaml.YAMLError as error:
        raise _not_yaml(error, str(path)) from error
    except RecursionError:
        raise _too_much(str(path)) from None
    finally:
        loader.dispose()


def parse_yaml(content: bytes | str, where: str) -> Any:  # noqa: ANN401 - whatever YAML holds
    """The content of YAML whose scalars have types, as `yaml.safe_load` has it; None of nothing.

    Raises `UserError` for what is no YAML, not UTF-8, too large or has a key twice.
    """
    import yaml

    if len(content) > MAX_BYTES:
        raise _too_much(where)
    try:
        loader = yaml.SafeLoader(
            decode_text(content, where) if isinstance(content, bytes) else content
        )
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            _refuse_unbounded(root, where)
            _refuse_repeated_keys(root, where)
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _not_yaml(error, where) from error
    except RecursionError:
        raise _too_much(where) from None
    # Dates, numbers and tags that are none of their kind.
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"not YAML, {reason}", where, "put such values in quotes") from error


def _not_yaml(error: Any, where: str) -> UserError:  # noqa: ANN401 - YAMLError, imported late
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
    place = where if mark is None else f"{where}:{mark.line + 1}"
    return UserError(f"not YAML, {' '.join(reason.split())[:200]}", place, "fix the line")


def _too_much(where: str) -> UserError:
    return UserError("too much YAML, or nested too deep", where, "write less, without aliases")


def _refuse_unbounded(root: "Node", where: str) -> None:
    """Raises `UserError` for what is endless once aliases are followed."""
    level, count = [root], 0
    for _ in range(_MAX_DEPTH):
        below: list[Node] = []
        for node in level:
            for part in node.value if isinstance(node.value, list) else []:
                below += part if isinstance(part, tuple) else [part]
            if len(below) > _MAX_NODES:
                raise _too_much(where)
        count += len(below)
        if count > _MAX_NODES:
            raise _too_much(where)
        if not below:
            return
        level = below
    raise _too_much(where)


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
        for key, value in _pairs(node):
            if key.value == part:
                node, line = value, key.start_mark.line
    return line + 1


def _pairs(node: "Node") -> list[tuple["Node", "Node"]]:
    parts = node.value if isinstance(node.value, list) else []
    return [part for part in parts if isinstance(part, tuple)]


def _refuse_repeated_keys(node: "Node", path: str) -> None:
    keys = set()
    for key, value in _pairs(node):
        if str(key.value) in keys:
            where = f"{path}:{key.start_mark.line + 1}"
            raise UserError(f"{key.value} stands here twice", where, "keep one")
        keys.add(str(key.value))
        _refuse_repeated_keys(value, path)
    for part in node.value if isinstance(node.value, list) else []:
        if not isinstance(part, tuple):
            _refuse_repeated_keys(part, path)

"""YAML that people write by hand: a file goes in, content and line numbers come out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError

if TYPE_CHECKING:
    from yaml.nodes import Node


def read_strict_yaml(path: Path) -> tuple[Any, "Node"]:
    """The content, in which every scalar is a text, and the nodes it was made of, for `line_of`.

    So `[yes, no]` are words and `1` may be a label; who wants a number converts it. Raises
    `UserError` for what is no YAML, empty, or has a key twice.
    """
    import yaml

    try:
        loader = yaml.BaseLoader(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError("cannot read the file", str(path), error.strerror or "") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError("no text", str(path), "write UTF-8 without control characters") from error
    try:
        root = loader.get_single_node()
        if root is None:
            raise UserError("an empty file", str(path), "write something into it")
        _refuse_repeated_keys(root, path)
        return loader.construct_document(root), root
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line
        what = f"not YAML, {error.problem or error.context}"
        raise UserError(what, f"{path}:{line + 1}", "mend the line") from error
    finally:
        loader.dispose()


def line_of(root: "Node", place: Sequence[str | int]) -> int:
    """The line, from 1, of what stands at a place, given by keys and indices from the root.

    Of a place that is not there, that of the last part of the way that is.
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


def _refuse_repeated_keys(node: "Node", path: Path) -> None:
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

"""Axes of a sweep: which values a field of the settings takes, read from `FIELD=VALUES`.

`batch_size=16,32` are choices, `optimizer.peak_learning_rate=1e-5..1e-4` is a range, and with
`log:` before it one over logarithms. Values are of the field's own type, as the settings take them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from bert_core.errors import UserError, nearest
from workflows.settings import field_names
from workflows.sweeps.outcome import Point

PAPER_GRID = (
    "batch_size=16,32",
    "optimizer.peak_learning_rate=5e-5,3e-5,2e-5",
    "epochs=2,3,4",
)
"""Devlin et al. 2018, A.3: the 18 settings that work well across all tasks."""

_LOG = "log:"
_RANGE = ".."


@dataclass(frozen=True)
class Choice:
    """A field that takes each of some values."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A field that takes any value from `low` to `high`, both included."""

    field: str
    low: float
    high: float
    is_log: bool
    is_integer: bool


Axis = Choice | Range


def read_axis(text: str, settings: type[BaseModel]) -> Axis:
    """The axis that `FIELD=VALUES` says; raises `UserError` for what no such field can be."""
    field, equals, said = text.partition("=")
    if not equals or not said.strip():
        raise UserError("an axis without values", f"--axis {text}", "write FIELD=16,32")
    kind = _type_of(field, settings)
    if _RANGE in said:
        return _range(field, said, kind)
    values = tuple(_value(each.strip(), field, kind) for each in said.split(","))
    if len(set(map(str, values))) < len(values):
        raise UserError("a value given twice", f"--axis {text}", "give each once")
    return Choice(field, values)


def with_point(values: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Nested settings, those of the point put in their places."""
    changed = dict(values)
    for name, value in point.items():
        head, dot, rest = name.partition(".")
        changed[head] = with_point(changed.get(head) or {}, {rest: value}) if dot else value
    return changed


def _type_of(field: str, settings: type[BaseModel]) -> Any:  # noqa: ANN401 - an annotation
    known = field_names(settings)
    if field not in known:
        near = nearest(field, known)
        raise UserError(f"an axis that is no setting{near}", f"--axis {field}", "see --help")
    *sections, name = field.split(".")
    model = settings
    for section in sections:
        annotation = model.model_fields[section].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return model.model_fields[name].annotation


def _value(text: str, field: str, kind: Any) -> Any:  # noqa: ANN401
    try:
        return TypeAdapter(kind).validate_python(None if text == "null" else text)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise UserError(
            f"{text!r} is no value of it: {message}", f"--axis {field}", "see --help"
        ) from error


def _range(field: str, said: str, kind: Any) -> Range:  # noqa: ANN401
    is_log = said.startswith(_LOG)
    low, _, high = said.removeprefix(_LOG).partition(_RANGE)
    kinds = {kind, *get_args(kind)}
    if not kinds & {int, float}:
        raise UserError("a range of what is no number", f"--axis {field}", "give values")
    first, last = _value(low, field, kind), _value(high, field, kind)
    if not first < last or (is_log and first <= 0):
        remedy = "write FIELD=LOW..HIGH, the smaller number first; after log: both above 0"
        raise UserError("a range without numbers in it", f"--axis {field}={said}", remedy)
    return Range(field, first, last, is_log, is_integer=float not in kinds)

"""The example in a model folder: an input, and the answer when the folder was written.

A program that opens the folder can repeat the question and compare the answers, which shows that
it is this model and that it computes the same here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bert_core.errors import UserError
from bert_core.strict_files import read_bounded

EXAMPLE = "example.json"

Kind = Literal["classify", "ner", "qa", "fill-mask", "features", "choose"]
"""What is asked of a model: the last part of the HTTP route; `choose`, of choices, has none."""

Inputs = str | dict[str, str | list[str]]
"""A text; or `text` and `text_pair`, `question` and `context`, `context` and `choices`."""

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05, "int8": 0.1}
"""How far scores may be off, by the numbers that are computed in on either side.

In float32 sums come in another order on another machine. In 8 bits, as in 16, a rounding may fall
to the other side, and CPUs without VNNI have 7 bits.
"""

_NAMES = ("label", "token")
"""What a list of scores is by, where its order is that of the scores."""

_DECIMALS = 6
"""What threads and machines may make of the same sum stays out of the file."""

_LONGEST = 60
"""Characters of a value in a message."""


class ModelExample(BaseModel):
    """Holds an input and the model's answer, both in the form of the HTTP route of its `kind`.

    Of the vector of a text (`features`) the answer has the first numbers. `precision` is that of
    the numbers it was computed in. A score may be off by `tolerance`, one above 1 by that share.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    kind: Kind
    inputs: Inputs
    answer: dict[str, Any]
    precision: str
    tolerance: float

    def answered(self, answer: Mapping[str, Any], precision: str) -> Self:
        """The same inputs with another answer, rounded, that was computed in these numbers."""
        tolerance = TOLERANCES[precision]
        changes = {"answer": _rounded(answer), "precision": precision, "tolerance": tolerance}
        return self.model_copy(update=changes)


def read_example(folder: Path) -> ModelExample | None:
    """The example in a model folder; None where there is none.

    Raises `UserError` for a damaged one.
    """
    path = folder / EXAMPLE
    if not path.exists():
        return None
    try:
        content = read_bounded(path)
        return ModelExample.model_validate_json(content)
    except ValidationError as error:
        raise UserError(
            "damaged model example", str(path), "restore the file, or export the model again"
        ) from error


def check_example(
    example: ModelExample, answer: Mapping[str, Any], precision: str = "float32"
) -> str | None:
    """How an answer to the example's inputs differs from its own, in a line; None if it does not.

    Labels, entities and passages have to be the same, scores within the tolerance, or within that
    of the `precision` which is computed in now, if that is wider. What the answer has besides does
    not count.
    """
    tolerance = max(example.tolerance, TOLERANCES[precision])
    return _difference("", example.answer, answer, tolerance)


def _difference(where: str, expected: Any, found: Any, tolerance: float) -> str | None:  # noqa: ANN401 - JSON
    if isinstance(expected, dict) and isinstance(found, Mapping):
        for name, value in expected.items():
            place = f"{where}.{name}" if where else name
            if name not in found:
                return f"{place} is missing"
            if difference := _difference(place, value, found[name], tolerance):
                return difference
        return None
    if isinstance(expected, list) and isinstance(found, Sequence) and not isinstance(found, str):
        return _difference_of_lists(where, expected, found, tolerance)
    if isinstance(expected, float) and isinstance(found, float | int):
        if abs(found - expected) <= tolerance * max(1.0, abs(expected)):  # so that NaN is not
            return None
        return f"{where} is {found:.6g}, was {expected:.6g}, and may be off by {tolerance:g}"
    return None if expected == found else f"{where} is {_short(found)}, was {_short(expected)}"


def _difference_of_lists(
    where: str, expected: list[Any], found: Sequence[Any], tolerance: float
) -> str | None:
    is_vector = bool(expected) and all(isinstance(each, float) for each in expected)
    is_longer = is_vector and len(found) > len(expected)  # of a vector the example has a part
    if len(found) != len(expected) and not is_longer:
        return f"{where} has {len(found)}, had {len(expected)}: {_short(found)}"
    by = next((name for name in _NAMES if all(_has(each, name) for each in expected)), None)
    if expected and by is not None:
        pairs = _by_name(where, by, expected, found, tolerance)
    else:
        both = enumerate(zip(expected, found[: len(expected)], strict=True))
        pairs = [(f"{where}[{number}]", *each) for number, each in both]
    differences = (_difference(*pair, tolerance) for pair in pairs)
    return next((difference for difference in differences if difference), None)


def _by_name(
    where: str, by: str, expected: list[Any], found: Sequence[Any], tolerance: float
) -> list[tuple[str, Any, Any]]:
    """Pairs scores of the same name: equal scores may have changed places.

    Those at the end may have given way to others that were level with them.
    """
    known = {each[by]: each for each in found if _has(each, by)}
    lowest = min((each["score"] for each in known.values()), default=float("-inf"))
    return [
        (f"{where}.{each[by]}", each, known.get(each[by]))
        for each in expected
        if each[by] in known or not each["score"] <= lowest + tolerance
    ]


def _has(value: object, name: str) -> bool:
    return isinstance(value, Mapping) and name in value and "score" in value


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, _DECIMALS) if isinstance(value, float) else value


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

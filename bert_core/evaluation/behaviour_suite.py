"""A YAML file of behavioural checks -> a `Suite`; see docs/behavioural_checks.md for the format.

The three kinds of Ribeiro et al. 2020 (CheckList): minimum functionality, invariance, direction.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bert_core.errors import UserError, nearest, refusal
from bert_core.strict_files import line_of, read_strict_yaml

if TYPE_CHECKING:
    from yaml.nodes import Node

SLOT = re.compile(r"\{([^{}]*)\}")

_Words = Annotated[list[str], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PairTemplate(_Strict):
    """A template of a pair of texts."""

    first: str
    second: str


class Change(_Strict):
    """One thing that is done to texts; exactly one of the fields but `side` is given."""

    typos: int | None = Field(
        default=None, ge=1, description="how often two neighbouring letters change places"
    )
    swap: str | None = Field(
        default=None, description="a list of `words`, each of which another of them replaces"
    )
    replace: dict[str, str] | None = Field(
        default=None, description="words, and what replaces each"
    )
    append: str | None = Field(default=None, description="a sentence put after the text")
    prepend: str | None = Field(default=None, description="a sentence put before the text")
    negate: Literal["true"] | None = Field(
        default=None, description="puts not after the first auxiliary verb, or takes it away"
    )
    case: Literal["lower", "upper"] | None = Field(default=None, description="the case of letters")
    side: Literal["first", "second", "both"] = Field(
        default="both", description="which text of a pair is changed"
    )

    @model_validator(mode="after")
    def _is_one(self) -> "Change":
        names = [name for name in Change.model_fields if name != "side"]
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(names)}")
        return self


class Check(_Strict):
    """What all checks have: a name, and texts from templates or from the data's examples."""

    name: str
    templates: str | PairTemplate | list[str | PairTemplate] | None = None
    examples: int | None = Field(default=None, ge=1, description="how many of the data's examples")
    cases: int = Field(default=100, ge=1, description="at most so many cases from the templates")

    @model_validator(mode="after")
    def _has_one_source(self) -> "Check":
        if (self.templates is None) == (self.examples is None):
            raise ValueError("give either templates or examples")
        return self

    @property
    def all_templates(self) -> list[str | PairTemplate]:
        """The templates, none where the data's examples are the texts."""
        if self.templates is None:
            return []
        return self.templates if isinstance(self.templates, list) else [self.templates]


class MinimumFunctionality(Check):
    """Every text has this label, or a number between two."""

    kind: Literal["minimum functionality"]
    label: str | None = None
    between: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _expects_one_thing(self) -> "MinimumFunctionality":
        if (self.label is None) == (self.between is None):
            raise ValueError("give either label or between")
        return self


class Invariance(Check):
    """The label is the same after the change; with a tolerance so are scores and numbers."""

    kind: Literal["invariance"]
    change: Change
    tolerance: float | None = Field(default=None, ge=0)


class Direction(Check):
    """A label's score, or the number, does not move the wrong way, and by `by` the right way."""

    kind: Literal["direction"]
    change: Change
    label: str | None = None
    moves: Literal["up", "down"]
    by: float = Field(default=0.0, ge=0)


AnyCheck = MinimumFunctionality | Invariance | Direction
KINDS: dict[str, type[Check]] = {
    "minimum functionality": MinimumFunctionality,
    "invariance": Invariance,
    "direction": Direction,
}


class _Content(_Strict):
    words: dict[str, _Words] = {}
    checks: list[Annotated[AnyCheck, Field(discriminator="kind")]] = Field(min_length=1)


@dataclass(frozen=True)
class Suite:
    """The checks of a file; `places` has file and line of each."""

    words: Mapping[str, Sequence[str]]
    checks: Sequence[AnyCheck]
    places: Sequence[str]


def read_suite(path: Path) -> Suite:
    """Reads a file of checks.

    Every scalar is a text until a number is asked for: `label: 1` and `[yes, no]` mean what they
    say. Raises `UserError`, with file and line and the nearest name, for what is not understood.
    """
    content, root = read_strict_yaml(path)
    try:
        parsed = _Content.model_validate(content)
    except ValidationError as error:
        raise _user_error(error, path, root) from error
    places = []
    for index, check in enumerate(parsed.checks):
        places.append(f"{path}:{line_of(root, ('checks', index))}")
        _check_names(check, parsed.words, places[-1])
    return Suite(parsed.words, parsed.checks, places)


def slot_list(slot: str, words: Mapping[str, Sequence[str]]) -> str:
    """The list of words that fills a slot: `name` of {name}, and of {name2}, which is another."""
    return slot if slot in words else slot.rstrip("0123456789")


def _check_names(check: AnyCheck, words: Mapping[str, Sequence[str]], where: str) -> None:
    wanted = []
    for template in check.all_templates:
        texts = [template] if isinstance(template, str) else [template.first, template.second]
        wanted += [slot_list(slot, words) for text in texts for slot in SLOT.findall(text)]
    if not isinstance(check, MinimumFunctionality) and check.change.swap is not None:
        wanted.append(check.change.swap)
        if len(set(words.get(check.change.swap, ("", "-")))) < 2:
            raise UserError("nothing to swap with", where, f"list more words: {check.change.swap}")
    for name in wanted:
        if name not in words:
            known = f"known are {', '.join(words)}" if words else "the file has no words"
            raise UserError(f"no words for {name!r}{nearest(name, list(words))}", where, known)


def _user_error(error: ValidationError, path: Path, root: "Node") -> UserError:
    first = error.errors()[0]
    place = first["loc"]
    where = f"{path}:{line_of(root, place)}"
    if first["type"] == "union_tag_invalid":
        tag = str(first.get("ctx", {}).get("tag"))
        return UserError(
            f"unknown kind {tag}{nearest(tag, list(KINDS))}", where, f"one of {', '.join(KINDS)}"
        )
    if first["type"] == "union_tag_not_found":
        return UserError("a check without kind", where, f"one of {', '.join(KINDS)}")
    if first["type"] == "extra_forbidden":
        name = str(place[-1])
        known = _fields_at(place[:-1])
        return UserError(f"unknown key {name}{nearest(name, known)}", where, ", ".join(known))
    named = ".".join(str(part) for part in place if part not in KINDS)
    return UserError(f"{named}: {refusal(error)}", where, "see docs/behavioural_checks.md")


def _fields_at(place: Sequence[str | int]) -> list[str]:
    if "change" in place:
        return list(Change.model_fields)
    if "templates" in place:
        return list(PairTemplate.model_fields)
    kinds = [part for part in place if part in KINDS]
    return list(KINDS[str(kinds[0])].model_fields if kinds else _Content.model_fields)

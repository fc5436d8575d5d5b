"""What `--help` of every command prints, as data, and the one layout of it.

A `CommandHelp` is made of a settings class. `--help` prints it and raises `HelpShown`, from which
reference pages take it.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, wrap
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bert_core.errors import UserError, nearest

_WIDEST, _NARROWEST = 100, 40
_LONGEST_CHOICES = 30
"""Characters of choices that stand next to the name of an option; more stand in its text."""

_UNITS = {
    "bytes": "bytes",
    "characters": "characters",
    "connections": "connections",
    "cpus_per_worker": "CPUs",
    "epochs": "epochs",
    "examples": "examples",
    "gib": "GiB",
    "gpus_per_trial": "GPUs",
    "items": "items",
    "layers": "layers",
    "learning_rate": "per step",
    "max_answer_length": "tokens",
    "max_length": "tokens",
    "max_position_embeddings": "tokens",
    "num_resamples": "samples",
    "num_rows": "rows",
    "num_workers": "processes",
    "points": "points",
    "seconds": "seconds",
    "sequence_length": "tokens",
    "static_masks": "copies",
    "steps": "steps",
    "stride": "tokens",
    "threads": "threads",
    "threads_per_worker": "threads",
    "tokens": "tokens",
    "vocabulary_size": "entries",
}
"""Units of numbers, by the last words of the option's name."""


@dataclass(frozen=True)
class Example:
    """A command line that runs: what it does, and its arguments without the program."""

    purpose: str
    arguments: str


@dataclass(frozen=True)
class Guide:
    """What stands first in the help of a command: examples, and the settings changed most.

    `common` are dotted names of settings; where there are none and at most ten settings, all are
    common, first those that are needed. `positional` is the one given without its name. `action`
    follows the program's name. `aliases` are pairs of a setting and another option that means it.
    `refused` are inherited settings that the command refuses, or sections of them, and does not
    show.
    """

    examples: tuple[Example, ...] = ()
    common: tuple[str, ...] = ()
    positional: str = ""
    action: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """One option of a command.

    `name` is as typed, `--cluster.num_workers`, or `RUN` for an argument without a name. `type` is
    flag, text, path, integer, number, list of one of these, JSON, NAME=VALUE, or the choices with
    `|` between them. `default` is empty where there is none, or the description says what holds.
    """

    name: str
    type: str
    default: str
    unit: str
    description: str
    choices: tuple[str, ...] = ()
    required: bool = False
    value: str = ""
    """What stands for the value in a usage line: `N`, `PATH`, `TASK …`; empty for a flag."""
    other_name: str = ""
    """`--no-NAME` of a flag that can be taken back, or an alias."""


@dataclass(frozen=True)
class Section:
    """Options that belong together."""

    title: str
    summary: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class CommandHelp:
    """The help of one command; an option is either common or in one of the sections."""

    program: str
    summary: str
    details: tuple[str, ...]
    examples: tuple[Example, ...]
    common: tuple[Option, ...]
    sections: tuple[Section, ...]

    @property
    def options(self) -> tuple[Option, ...]:
        """All options, the common ones first."""
        return (*self.common, *(option for part in self.sections for option in part.options))

    @property
    def usage(self) -> str:
        """The program, what it needs, and whether there is more."""
        needed = [
            f"{option.name} {option.value}".strip() if option.name.startswith("-") else option.name
            for option in self.options
            if option.required
        ]
        rest = ["[OPTIONS]"] if any(not option.required for option in self.options) else []
        return " ".join([self.program, *needed, *rest])


class HelpShown(SystemExit):  # noqa: N818 - the end of a command, not an error
    """Ends a command that has printed its help, with exit code 0."""

    def __init__(self, page: CommandHelp) -> None:
        super().__init__(0)
        self.page = page


def program_name(otherwise: str) -> str:
    """`bertline VERB` where the console script was called so, or else the other name."""
    name = Path(sys.argv[0]).name
    return name if name.startswith("bertline ") else otherwise


def show_help(page: CommandHelp) -> NoReturn:
    """Prints the help as wide as the terminal, at most 100 columns, and raises `HelpShown`."""
    sys.stdout.write(f"{format_help(page, shutil.get_terminal_size((_WIDEST, 24)).columns)}\n")
    raise HelpShown(page)


def format_help(page: CommandHelp, columns: int = _WIDEST) -> str:
    """The text of `--help`, in lines of at most `columns` characters (40 to 100)."""
    width = min(max(columns, _NARROWEST), _WIDEST)
    indent = " " * len("usage: ")
    blocks = [
        fill(f"usage: {page.usage}", width, subsequent_indent=indent, **_WHOLE_WORDS),
        *(fill(text, width, **_WHOLE_WORDS) for text in (page.summary, *page.details)),
    ]
    if page.examples:
        lines = (
            line for example in page.examples for line in _example(page.program, example, width)
        )
        blocks.append("\n".join(["Examples", *lines]))
    title = "Common settings" if page.sections else "Settings"
    for section in (Section(title, "", page.common), *page.sections):
        if section.options:
            head = f"{section.title}: {section.summary}" if section.summary else section.title
            lines = [line for option in section.options for line in _lines(option, width)]
            blocks.append("\n".join([fill(head, width, **_WHOLE_WORDS), *lines]))
    return "\n\n".join(blocks)


_WHOLE_WORDS: Mapping[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _example(program: str, example: Example, width: int) -> Iterator[str]:
    """A comment, and the command; a long one is divided before options."""
    yield f"  # {example.purpose}"
    text = f"{program} {example.arguments}".rstrip().replace(" --", "\n--")
    line = ""
    for part in text.split("\n"):
        if line and len(f"  {line} {part} \\") > width:
            yield f"  {line} \\"
            line = f"  {part}"
        else:
            line = f"{line} {part}" if line else part
    yield f"  {line}"


def _lines(option: Option, width: int) -> Iterator[str]:
    """The name and value of an option, and its text in a second column."""
    column = min(36, 2 * width // 5)
    names = ", ".join(filter(None, (option.name, option.other_name)))
    left = f"  {names} {option.value}".rstrip() if option.name.startswith("-") else f"  {names}"
    said = wrap(described(option), width - column, **_WHOLE_WORDS)
    if len(left) > column - 2 or not said:
        yield left
    else:
        yield left.ljust(column) + said.pop(0)
    yield from (" " * column + line for line in said)


def described(option: Option) -> str:
    """The description with choices, default and unit, in one form: `… [default: 4096 tokens]`."""
    text = option.description
    choices = "|".join(option.choices)
    if choices and choices != option.value.strip("{}"):
        text += f": {', '.join(option.choices)}"
    unit = option.unit
    if option.default == "1" and unit != "per step":
        unit = unit.removesuffix("es" if unit == "processes" else "s")
    if option.required:
        return f"{text} [required]"
    if option.default:
        return f"{text} [default: {f'{option.default} {unit}'.strip()}]"
    return f"{text} [{unit}]" if unit and unit not in text else text


def help_of_settings(
    program: str,
    settings: type[BaseModel],
    guide: Guide,
    defaults: Mapping[str, Any] | None = None,
    note: str = "",
) -> CommandHelp:
    """The help of a command whose options are the fields of a pydantic model.

    `defaults`, by section, stand for those of the fields; `note` is one more paragraph.
    """
    sections = list(_sections(settings, guide, defaults or {}))
    options = {option.name: option for section in sections for option in section.options}
    names = [_typed(name, guide) for name in guide.common]
    unknown = [name for name in names if name not in options]
    assert not unknown, f"{unknown} are no settings of {settings.__name__}"
    if not names and sum(len(section.options) for section in sections) <= 10:
        names = sorted(options, key=lambda name: not options[name].required)
    rest = (
        Section(
            section.title,
            section.summary,
            tuple(option for option in section.options if option.name not in names),
        )
        for section in sections
    )
    summary, *details = _paragraphs(settings.__doc__ or "")
    return CommandHelp(
        f"{program} {guide.action}".strip(),
        summary,
        (*details, *filter(None, [note])),
        guide.examples,
        tuple(options[name] for name in names),
        tuple(section for section in rest if section.options),
    )


def _sections(
    model: type[BaseModel],
    guide: Guide,
    defaults: Mapping[str, Any],
    prefix: str = "",
    summary: str = "",
) -> Iterator[Section]:
    """The section of a model's own fields, then those of the models in it."""
    own: list[Option] = []
    below: list[Section] = []
    for field_name, field in model.model_fields.items():
        own_name = field.alias or field_name
        name = prefix + own_name
        if name in guide.refused:
            continue
        inner = _without_none(field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            about = field.description or _paragraphs(inner.__doc__ or "")[0]
            within = _told(field.default) | defaults.get(own_name, {})
            below += _sections(inner, guide, within, f"{name}.", about)
        elif f"--{name} " not in guide.action:  # it would be the action again
            own.append(_option(name, field, inner, guide, defaults.get(own_name, _OWN)))
    title = prefix.removesuffix(".").replace("_", " ").replace(".", ", ").capitalize()
    yield Section(title or "General", _in_a_sentence(summary), tuple(own))
    yield from below


def _told(default: Any) -> dict[str, Any]:  # noqa: ANN401 - of any field
    """What a section's own default says of its fields."""
    told = default.model_fields_set if isinstance(default, BaseModel) else ()
    return {name: getattr(default, name) for name in told}


def _in_a_sentence(text: str) -> str:
    """A text to go on with after a colon, without its full stop."""
    first = text[:1].lower() if text[1:2].islower() else text[:1]
    return first + text[1:].rstrip(".")


def _typed(name: str, guide: Guide) -> str:
    """A setting as one types it."""
    return name.upper() if name == guide.positional else f"--{name}"


_OWN = object()
"""Stands for a field's own default."""


def _option(
    name: str,
    field: FieldInfo,
    kind: Any,  # noqa: ANN401 - an annotation
    guide: Guide,
    default: Any,  # noqa: ANN401 - a setting's value
) -> Option:
    type_name, value, choices = _type_of(kind, name)
    required = field.is_required() and default is _OWN
    if default is _OWN:
        default = None if required else field.get_default(call_default_factory=True)
    may_be_taken_back = type_name == "flag" and (default is None or default is True)
    return Option(
        name=_typed(name, guide),
        type=type_name,
        default="" if type_name == "flag" and default is False else _shown(default),
        unit=_unit(name) if type_name in ("integer", "number") else "",
        description=field.description or "",
        choices=choices,
        required=required,
        value=value,
        other_name=dict(guide.aliases).get(name, f"--no-{name}" if may_be_taken_back else ""),
    )


def _type_of(kind: Any, name: str) -> tuple[str, str, tuple[str, ...]]:  # noqa: ANN401
    """The type of a value, what stands for it, and its choices."""
    kind = _without_none(kind)
    origin = get_origin(kind)
    of_name = name.rpartition(".")[2].rpartition("_")[2].upper()
    simple: dict[Any, tuple[str, str]] = {
        bool: ("flag", ""),
        int: ("integer", "N"),
        float: ("number", "X"),
        Path: ("path", "PATH"),
    }
    if kind in simple:
        return *simple[kind], ()
    if origin is Literal:
        choices = tuple(map(str, get_args(kind)))
        short = "|".join(choices)
        return short, f"{{{short}}}" if len(short) <= _LONGEST_CHOICES else of_name, choices
    if origin is dict:
        return "NAME=VALUE", "NAME=VALUE …", ()
    if origin in (list, tuple):
        inner = _without_none(get_args(kind)[0])
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return "JSON", "JSON", ()
        one, value, choices = _type_of(inner, name)
        return f"list of {one}", f"{value} …", choices
    if origin in (Union, UnionType):
        return _type_of(get_args(kind)[0], name)
    return "text", of_name, ()


def _without_none(kind: Any) -> Any:  # noqa: ANN401 - an annotation
    """An annotation without None and what `Annotated` adds."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        return _without_none(parts[0]) if len(parts) == 1 else kind
    return kind


def _shown(default: Any) -> str:  # noqa: ANN401 - of any option
    """A default as one types it; empty for None, an empty list, and what says nothing."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return _number(default)
    if isinstance(default, list | tuple):
        if any(isinstance(each, BaseModel | dict) for each in default):
            return json.dumps(default, default=lambda each: each.model_dump(mode="json"))
        return " ".join(map(_shown, default))
    if isinstance(default, dict):
        return " ".join(f"{name}={_shown(value)}" for name, value in default.items())
    return str(default).replace(str(Path.home()), "~")


def _number(value: float) -> str:
    """A number in the fewest characters: 0.1, 1e-4, 30."""
    text = f"{value:g}"
    mantissa, exponent, power = text.partition("e")
    if exponent:
        return f"{mantissa}e{int(power)}"
    short = f"{value:.0e}".replace("e-0", "e-")
    return short if 0 < value < 1e-3 and float(short) == value else text


def _unit(name: str) -> str:
    words = name.rpartition(".")[2].split("_")
    endings = ("_".join(words[first:]) for first in range(len(words)))
    return next((_UNITS[ending] for ending in endings if ending in _UNITS), "")


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()] or [""]


def command_line_error(message: str, known: Sequence[str]) -> UserError:
    """What argparse has to say, with the nearest of the known options and where to find all."""
    marker = "unrecognized arguments: "
    if marker in message:
        unknown = message.split(marker)[1].split()[0]
        name = unknown.removeprefix("--").split("=")[0]
        near = nearest(name, [each.removeprefix("--") for each in known])
        return UserError(f"unknown setting{near}", unknown, "see --help")
    return UserError("cannot read the command line", message, "see --help")

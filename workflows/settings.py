"""Typed settings from the command line: defaults < preset < profile < `--section.field value`.

A settings class goes in with the arguments; a validated object comes out, or a `UserError` that
names the setting and, where a name is unknown, the nearest one. The environment is never read.
"""

import csv
import glob
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliSettingsSource, PydanticBaseSettingsSource
from pydantic_settings.exceptions import SettingsError

from bert_core.command_help import (
    CommandHelp,
    Guide,
    command_line_error,
    help_of_settings,
    program_name,
    show_help,
)
from bert_core.errors import UserError, nearest, refusal
from bert_core.strict_files import MAX_YAML_BYTES, parse_yaml, read_bounded
from serving.registry import default_tracking_uri

Settings = TypeVar("Settings", bound=BaseSettings)

_NAMED = re.compile(r"[A-Za-z_][\w.:-]*=")
_PACKAGES = re.compile(r"docs://\w")

LAYERS = {
    "preset": Path(__file__).parent / "presets",
    "profile": Path(__file__).parent / "profiles",
}
"""The two options that name a settings file, and the folders of the files that have names."""


class _JsonLists(CliSettingsSource):
    """Takes a list that is written as JSON as it is: pydantic's own reading breaks escapes in it.

    So a path may have a quote, a backslash or any letter in it.
    """

    def _merge_parsed_list(self, parsed_list: list[str], field_name: str) -> str:
        if len(parsed_list) == 1 and str(parsed_list[0]).startswith("["):
            with suppress(ValueError):
                json.loads(parsed_list[0])
                return parsed_list[0]
        return super()._merge_parsed_list(parsed_list, field_name)


class CommandLineSettings(BaseSettings):
    """What entry points derive from: no environment, no dotenv file, no unknown field."""

    model_config = {
        "extra": "forbid",
        "frozen": True,
        "cli_kebab_case": False,
        "cli_implicit_flags": True,
        "cli_hide_none_type": True,
        "cli_parse_none_str": "null",
        "cli_avoid_json": True,
        "nested_model_default_partial_update": True,
    }
    guide: ClassVar[Guide] = Guide()
    """What stands first in `--help`."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Leaves what the caller passes; the command line is put in front of it."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def default_storage() -> str:
    """The folder of runs, models and the MLflow store where no other is given."""
    return str(Path.home() / ".bertline")


def storage_folder(storage: str) -> Path:
    """The storage folder on this machine: of a URI its working copy, the same for each start."""
    if "://" not in storage:
        return Path(storage).expanduser().absolute()
    uri = storage.rstrip("/")
    slug = re.sub(r"[^\w.]+", "-", uri.partition("?")[0])[:48].strip("-")
    digest = hashlib.sha256(uri.encode()).hexdigest()[:8]
    return Path.home() / ".bertline" / "copies" / f"{slug}-{digest}"


class StoreSettings(CommandLineSettings):
    """Where a command finds models and runs, by name and at MLflow."""

    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs, fetched models and the MLflow store",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under --storage"
    )

    @property
    def storage_folder(self) -> Path:
        """The storage folder on this machine."""
        return storage_folder(self.storage)

    @property
    def mlflow_uri(self) -> str:
        """The tracking URI: the one given, or that of the store under --storage."""
        return self.tracking_uri or default_tracking_uri(self.storage_folder)


def parse_command_line(settings_class: type[Settings], arguments: Sequence[str]) -> Settings:
    """Reads arguments, and the preset and profile they name, into `settings_class`.

    `--help` prints every field with its unit and its default under this preset and profile, and
    leaves with exit code 0; `--some-field` is `--some_field`. Raises `UserError` for anything that
    is wrong, in one line.
    """
    guide = getattr(settings_class, "guide", Guide())
    arguments = _without_aliases(guide, arguments)
    arguments = written_out(settings_class, _with_underscores(settings_class, arguments))
    given: dict[str, Any] = {}
    layers: list[str] = []
    for option, folder in LAYERS.items():
        if option in settings_class.model_fields:
            chosen = given_option(arguments, option) or settings_class.model_fields[option].default
            if chosen:
                given = _merged(given, read_layer(option, chosen, folder))
                layers.append(f"--{option} {chosen}")
    source = _JsonLists(settings_class, cli_exit_on_error=False)
    source.root_parser.print_help = lambda: show_help(_help_of(settings_class, given, layers))
    try:
        flags = source(args=_flags_of_booleans(settings_class, arguments))()
    except SettingsError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise command_line_error(message, field_names(settings_class)) from error
    return validated(settings_class, _merged(given, flags), "the command line")


def _help_of(
    settings_class: type[BaseSettings], given: dict[str, Any], layers: Sequence[str]
) -> CommandHelp:
    script = Path(sys.argv[0]).name
    program = program_name(f"python workflows/{script}")
    guide = getattr(settings_class, "guide", Guide())
    note = f"The defaults below are those of {' '.join(layers)}." if layers else ""
    return help_of_settings(program, settings_class, guide, given, note)


def read_layer(option: str, name: str, folder: Path) -> dict[str, Any]:
    """The content of a settings file given by its name in `folder` or by its path."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = folder / f"{name}.yaml"
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        if not path.is_file():
            raise UserError(
                f"unknown {option}{nearest(name, known)}",
                f"--{option} {name}",
                f"give one of {', '.join(known)}, or the path of a .yaml file",
            )
    remedy = f"give the path of a .yaml file to --{option}"
    content = parse_yaml(read_bounded(path, remedy, max_bytes=MAX_YAML_BYTES), str(path))
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError("no settings", str(path), "write `section: {field: value}`")
    return content


def validated(settings_class: type[Settings], values: dict[str, Any], origin: str) -> Settings:
    """The settings object of these values; raises `UserError` for the first that is wrong."""
    try:
        return settings_class(**values)
    except ValidationError as error:
        first = error.errors()[0]
        # Of a field of several types pydantic names the one that it tried, too: literal['a'].
        where = ".".join(part for part in map(str, first["loc"]) if "[" not in part)
        if first["type"] == "extra_forbidden":
            near = nearest(where, field_names(settings_class))
            raise UserError(f"unknown setting{near}", where, "see --help") from error
        where = f"--{where}" if where else origin
        raise UserError(refusal(error), where, "see --help") from error


def field_names(model: type[BaseModel], prefix: str = "", *, kind: object = None) -> list[str]:
    """The dotted names of all fields of a settings class, or of those of one type."""
    names = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            names += field_names(annotation, f"{prefix}{name}.", kind=kind)
        elif kind is None or annotation == kind:
            names.append(prefix + name)
    return names


def settings_hash(values: dict[str, Any]) -> str:
    """Eight hexadecimal digits that settings and data of the same content share."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`field: old -> new` for every field in which two settings dictionaries differ."""
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            changes.append(f"{prefix}{name}: {before} -> {after}")
    return changes


def given_option(arguments: Sequence[str], name: str) -> str | None:
    """The value of `--name value` or `--name=value`, the last one given."""
    value = None
    for position, argument in enumerate(arguments):
        if argument == f"--{name}" and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"--{name}="):
            value = argument.split("=", 1)[1]
    return value


def given_names(arguments: Sequence[str]) -> set[str]:
    """The names of the options of a command line, also where written `--some-field=value`."""
    return {
        argument.partition("=")[0].removeprefix("--").replace("-", "_")
        for argument in arguments
        if argument.startswith("--")
    }


MODEL_PLACES = "a model folder, models:/NAME@ALIAS, hf://OWNER/NAME, or a run name"
"""What every option of a model takes."""

ONE_PER_ARGUMENT: dict[str, JsonValue] = {"one_per_argument": True}
"""Marks the field (`json_schema_extra`) of a list whose values are prose, with commas in them."""


def split_list(text: str) -> list[str]:
    """The values of a list as one types it, `a,b`.

    A comma divides, unless it stands within double quotes, or in the path of a file that is there
    or a glob that finds one. In `NAME=a,b,OTHER=c` values belong to the name before them, and
    packages in `docs://a,b` to that address.
    """
    if "," not in text or _finds_files(text):
        return [text] if text else []
    pieces = [piece.strip() for piece in next(csv.reader([text], skipinitialspace=True))]
    return _with_their_names(filter(None, pieces))


def _with_their_names(pieces: Iterable[str]) -> list[str]:
    """Joins to `NAME=a` what follows it and has no name, and to `docs://a` more packages."""
    joined: list[str] = []
    for piece in pieces:
        before = joined[-1] if joined else ""
        is_value = _NAMED.match(before) and not _NAMED.match(piece) and not _finds_files(before)
        is_package = _PACKAGES.match(before) and piece.isidentifier() and not _finds_files(piece)
        if is_value or is_package:
            joined[-1] = f"{before},{piece}"
        else:
            joined.append(piece)
    return joined


def _finds_files(text: str) -> bool:
    try:
        path = str(Path(text).expanduser())
        return os.path.exists(path) or bool(glob.glob(path, recursive=True))  # noqa: PTH110, PTH207
    except (OSError, ValueError, RuntimeError):
        return False  # no path: too long, or with a NUL


def written_out(settings_class: type[BaseSettings], arguments: Sequence[str]) -> list[str]:
    """Rewrites the values of each list, divided by spaces, commas or both, to JSON.

    So they are the same for every option of every command: `--text a b`, `--text a,b`, and
    `--text a --text b`. Of `--options a=b c=d` an object is made.
    """
    fields = list_fields(settings_class)
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    taking = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        name = option.removeprefix("--")
        if option.startswith("--") and name in fields:
            values.setdefault(name, []).extend([value] if equals else [])
            taking = "" if equals else name
        elif taking and not argument.startswith("--") and argument != "-h":
            values[taking].append(argument)
        else:
            taking = ""
            rest.append(argument)
    for name, typed in values.items():
        rest += [f"--{name}", *_as_json(name, fields[name], typed)]
    return rest


def _as_json(name: str, field: FieldInfo, typed: Sequence[str]) -> list[str]:
    """The argument of an option of a list: JSON, null, or nothing where nothing follows it."""
    if not typed or list(typed) == ["null"]:
        return list(typed)
    values: list[Any] = []
    for text in typed:
        if text.startswith(("[", "{")):
            try:
                given = json.loads(text)
            except ValueError:
                given = None
            if isinstance(given, dict) and _is_of(field, (dict,)):
                return [text]
            if given is not None:
                values += given if isinstance(given, list) else [given]
                continue
        keeps_commas = field.json_schema_extra == ONE_PER_ARGUMENT
        values += [text] if keeps_commas else split_list(text)
    if not _is_of(field, (dict,)):
        named = values and isinstance(values[0], str) and _NAMED.match(values[0])
        return [json.dumps(_with_their_names(values) if named else values)]
    pairs = [value.partition("=") for value in _with_their_names(map(str, values))]
    wrong = next((key for key, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise UserError("an option without a value", f"--{name} {wrong}", "write NAME=VALUE")
    return [json.dumps({key: value for key, _, value in pairs})]


def list_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """The fields of a settings class, by their dotted names, that are lists, tuples or mappings."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields |= list_fields(annotation, f"{prefix}{name}.")
        elif _is_of(field, (list, tuple, dict)):
            fields[prefix + name] = field
    return fields


def _is_of(field: FieldInfo, kinds: tuple[type, ...]) -> bool:
    """Whether a field, where it is not None, is of one of these kinds, and of no other."""
    annotation = field.annotation
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return all(get_origin(part) in kinds for part in parts if part is not NoneType)


def _without_aliases(guide: Guide, arguments: Sequence[str]) -> list[str]:
    """Rewrites `--register NAME` to the setting that it means."""
    settings = {option: f"--{name}" for name, option in guide.aliases}
    parts = (argument.partition("=") for argument in arguments)
    return ["".join([settings.get(option, option), *rest]) for option, *rest in parts]


def _with_underscores(settings_class: type[BaseSettings], arguments: Sequence[str]) -> list[str]:
    """Rewrites `--some-field`, as other programs have it, to the field that it means."""
    known = set(field_names(settings_class))
    rewritten = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        prefix = "--no-" if option.startswith("--no-") else "--"
        name = option.removeprefix(prefix).replace("-", "_")
        is_known = option.startswith("--") and name in known
        rewritten.append(f"{prefix}{name}{equals}{value}" if is_known else argument)
    return rewritten


_TRUTH = {"true": True, "false": False}


def _flags_of_booleans(settings_class: type[BaseSettings], arguments: Sequence[str]) -> list[str]:
    """Rewrites `--flag true` and `--flag false`, as one writes in YAML, to the flags they mean."""
    kinds = (bool, bool | None)
    known = {f"--{name}" for kind in kinds for name in field_names(settings_class, kind=kind)}
    rewritten: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not (equals and option in known):
            option, value = rewritten[-1] if rewritten else "", argument
        elif value.lower() in _TRUTH:
            rewritten.append(option)
        if option in known and value.lower() in _TRUTH:
            rewritten[-1] = option if _TRUTH[value.lower()] else f"--no-{option[2:]}"
        else:
            rewritten.append(argument)
    return rewritten


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, section by section.

    A warm-up in steps is over one that is a share: of both in one place the share counts.
    """
    merged = dict(below)
    if "warmup_steps" in above:
        merged.pop("warmup_share", None)
    for key, value in above.items():
        old = merged.get(key)
        sections = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merged(dict(old or {}), value) if sections else value
    return merged

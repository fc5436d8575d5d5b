"""Reference pages of the commands, generated from their settings models."""

import inspect
import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from bert_core.tasks.catalog import TASKS
from serving import new_key, watch
from serving.settings import ServerSettings
from workflows.ablations.settings import AblateSettings
from workflows.cli import COMPLETION_HELP, STAGES, VERBS
from workflows.demo import DemoSettings
from workflows.evaluation.settings import EvaluateSettings
from workflows.finetuning.settings import settings_class
from workflows.inference.extraction import ExtractSettings
from workflows.inference.predict_settings import PredictSettings
from workflows.paper.suite_settings import PicturesSettings, Table7Settings
from workflows.prepare import PrepareSettings
from workflows.pretraining.settings import PretrainSettings
from workflows.promotion.decision import HistorySettings, PromoteSettings, RollbackSettings
from workflows.quantization.settings import QuantizeSettings
from workflows.registry import LineageSettings
from workflows.reproduce import ReproduceSettings
from workflows.settings import LAYERS
from workflows.sweeps.settings import tune_settings_class

Model = type[BaseModel]

SETTINGS: dict[str, dict[str, Model]] = {
    "prepare": {"": PrepareSettings},
    "pretrain": {"": PretrainSettings},
    "finetune": {"": settings_class("classification")},
    "tune": {"": tune_settings_class("classification")},
    "ablate": {"": AblateSettings},
    "evaluate": {
        "": EvaluateSettings,
        "--suite table7": Table7Settings,
        "--suite pictures": PicturesSettings,
    },
    "reproduce": {"": ReproduceSettings},
    "predict": {"": PredictSettings},
    "extract": {"": ExtractSettings},
    "serve": {"": ServerSettings},
    "demo": {"": DemoSettings},
    "quantize": {"": QuantizeSettings},
    "promote": {"": PromoteSettings, "rollback": RollbackSettings, "history": HistorySettings},
    "registry": {"lineage": LineageSettings},
    "completion": {},
}
"""The settings of each command, by the arguments that select them."""

GUIDES = {
    "ablate": "ablations",
    "extract": "features",
    "quantize": "serve",
    "registry": "promote",
    "reproduce": "promote",
    "completion": None,
}
"""Commands whose guide has another name, or that have none."""

INTRODUCTION = """# Commands

`bertline COMMAND …` is `python workflows/COMMAND.py …`, and `bertline serve …` is
`python -m serving …`. These pages are generated from the settings models that the commands parse.

- **Layers.** A value comes from the default, the preset (`--preset`), the profile (`--profile`) or
  the command line; the later one wins. Presets and profiles are YAML files.
- **Sections.** A field of a section is `--section.field value`, in YAML `section: {field: value}`.
  Dashes and underscores are the same.
- **Flags.** `--flag`, `--no-flag`, or `--flag true`.
- **Lists.** Values are separated by spaces, commas or both; a comma within double quotes, or in the
  path of an existing file, is part of the value.
- **Exit codes.** 0: done. 2: the input is wrong; the last line says what, where and what to do.
  3: the answer is no (a promotion gate refuses, a reproduction differs). 130: stopped; the same
  command resumes.
"""

_WORDS = {int: "integer", float: "number", str: "text", Path: "path", bool: "flag"}
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Option:
    """A row of the reference."""

    name: str
    kind: str
    default: str
    description: str


def pages() -> Iterator[tuple[str, str]]:
    """Names and Markdown of all pages; the first is the overview, the others are the commands."""
    lines = [INTRODUCTION]
    for stage, verbs in STAGES.items():
        lines.append(f"## {stage}\n\n| command | |\n|---|---|")
        lines += [f"| [`{verb}`]({verb}.md) | {text} |" for verb, text in verbs.items()]
        lines.append("")
    yield "index", "\n".join(lines)
    for verb in VERBS:
        yield verb, "\n\n".join(command_page(verb)) + "\n"


def command_page(verb: str) -> Iterator[str]:
    """The paragraphs of a command's page."""
    program = "python -m serving" if verb == "serve" else f"python workflows/{verb}.py"
    yield f"# bertline {verb}\n\n{VERBS[verb]}."
    guide = GUIDES.get(verb, verb)
    if guide:
        yield f"The same as `{program}`. Guide: [{guide}](../guides/{guide}.md)."
    for arguments, model in SETTINGS[verb].items():
        if arguments:
            yield f"## {arguments}"
        yield _text(inspect.cleandoc(model.__doc__ or "").split("\n\nThe options are those")[0])
        yield from sections(model, "###" if arguments else "##")
    if verb in ("finetune", "tune"):
        yield from features_options(verb)
        yield from task_options()
    if verb == "serve":
        for module in (new_key, watch):
            yield f"## python -m {module.__name__}\n\n```text\n{printed_help(module.main)}```"
    if verb == "completion":
        yield f"```text\n{COMPLETION_HELP}\n```"


def sections(model: Model, heading: str) -> Iterator[str]:
    """A table of the options outside any section, then one for each section."""
    own = [option for name, field in model.model_fields.items() for option in _own(name, field)]
    own.sort(key=lambda option: option.default != "required")
    yield f"{heading} Options\n\n{table(own)}"
    for name, field in model.model_fields.items():
        section = _section(field)
        if section is not None and name != "options":
            defaults = None if field.is_required() else field.get_default(call_default_factory=True)
            rows = [_option(f"{name}.{key}", each, defaults, key) for key, each in _fields(section)]
            about = inspect.cleandoc(section.__doc__ or "")
            title = name.replace("_", " ").capitalize()
            yield f"{heading} {title}\n\n{_text(about)}\n\n{table(rows)}"


def features_options(verb: str) -> Iterator[str]:
    """What `--approach features` adds to the options of a run, or changes."""
    make = settings_class if verb == "finetune" else tune_settings_class
    usual, features = (
        {option.name: option for option in all_options(make("ner", approach))}
        for approach in ("finetune", "features")
    )
    other = [option for name, option in features.items() if usual.get(name) != option]
    other = [option for option in other if option.name not in ("--task", "--approach")]
    yield (
        "## --approach features\n\nTrains a BiLSTM over the hidden states of an encoder that stays"
        " unchanged, for tagging tasks. Dropout options are not used. These options are other or"
        f" have another default:\n\n{table(other)}"
    )


def task_options() -> Iterator[str]:
    """The options of each kind of task, and where tasks of one kind have other defaults."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, task in TASKS.items():
        kinds.setdefault(tuple(type(task).model_fields), []).append(name)
    yield "## Options of tasks\n\n`--task` decides which `--options.NAME` exist."
    shown: dict[str, list[Option]] = {}
    for names in kinds.values():
        usual, *others = (_task_options(name) for name in names)
        like = next((name for name, known in shown.items() if _has_all(usual, known)), None)
        shown[names[0]] = usual
        more = usual if like is None else [each for each in usual if each not in shown[like]]
        about = "" if like is None else f"The options of `{like}`, and these:\n\n"
        yield f"### {', '.join(names)}\n\n{about}{table(more)}"
        changes = [
            f"- `{name}`: {', '.join(f'`{e.name} {e.default}`' for e in options if e not in usual)}"
            for name, options in zip(names[1:], others, strict=True)
            if options != usual
        ]
        if changes:
            yield "Other defaults:\n\n" + "\n".join(changes)


def _has_all(options: list[Option], others: list[Option]) -> bool:
    return {each.name for each in others} <= {each.name for each in options}


def _task_options(name: str) -> list[Option]:
    task = TASKS[name]
    return [_option(f"options.{key}", each, task, key) for key, each in _fields(type(task))]


def table(options: Iterable[Option]) -> str:
    """Options as a table of two columns, so that a narrow screen has room for it."""
    lines = ["| option | |", "|---|---|"]
    for option in options:
        default = f", default `{option.default}`" if option.default else ""
        default = ", required" if option.default == "required" else default
        kind = f"{option.kind}{default}".replace("|", "\\|")
        lines.append(f"| `{option.name}` | <small>{kind}</small><br>{_text(option.description)} |")
    return "\n".join(lines)


def printed_help(main: Callable[[list[str]], int]) -> str:
    """What a program prints for `--help`."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main(["--help"])
    return printed.getvalue()


def all_options(model: Model) -> Iterator[Option]:
    """The options of a settings model, those of its sections too."""
    for name, field in model.model_fields.items():
        yield from _own(name, field)
        section = _section(field)
        if section is not None and name != "options":
            defaults = None if field.is_required() else field.get_default(call_default_factory=True)
            yield from (
                _option(f"{name}.{key}", each, defaults, key) for key, each in _fields(section)
            )


def _own(name: str, field: FieldInfo) -> list[Option]:
    return [] if _section(field) else [_option(name, field, None, name)]


def _section(field: FieldInfo) -> Model | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _fields(model: Model) -> Iterator[tuple[str, FieldInfo]]:
    yield from model.model_fields.items()


def _option(dotted: str, field: FieldInfo, defaults: object, key: str) -> Option:
    """The row of a field; `defaults` is an object whose attributes win over its own default."""
    is_positional = any("Positional" in type(each).__name__ for each in field.metadata)
    name = field.alias or dotted
    name = name.upper() if is_positional else f"--{name}"
    if field.is_required() and defaults is None:
        default = "required"
    else:
        value = field.default if defaults is None else getattr(defaults, key)
        default = "" if field.default_factory is not None else _value(field, value)
    kind = _kind(field.annotation)
    if dotted in LAYERS and field.default is not None:  # elsewhere a preset has no name
        names = sorted(path.stem for path in LAYERS[dotted].glob("*.yaml"))
        few = [name for name in names if not name.startswith("tpu-")]
        kind = "a `.yaml` file or one of " + ", ".join(f"`{name}`" for name in few)
        if few != names:
            kind += ", or of a [slice of TPU](../tpu.md#profiles)"
    bounds = [
        f"{sign} {getattr(each, attribute)}"
        for each in field.metadata
        for attribute, sign in _BOUNDS.items()
        if hasattr(each, attribute)
    ]
    kind = " ".join([kind, ", ".join(bounds)]).strip()
    return Option(name, kind, default, field.description or "")


def _value(field: FieldInfo, value: object) -> str:
    """A default as one types it; empty where it says nothing."""
    if value in (None, PydanticUndefined, "", [], (), {}):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    if isinstance(value, str | int | float | Path):
        return str(value)
    return TypeAdapter(field.annotation).dump_json(value).decode().replace(",", ", ")


def _kind(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    """An annotation in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(_kind(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is tuple and Ellipsis not in parts:
        return f"pair `[{parts[0].__name__}, {parts[1].__name__}]`"
    if origin in (list, tuple):
        return "JSON list" if _is_model(parts[0]) else "list"
    if origin is dict:
        return "`NAME=VALUE` list"
    return _WORDS.get(annotation, "text")


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _text(prose: str) -> str:
    """Prose of a help text as Markdown: options and addresses as code, nothing as markup."""
    escaped = re.sub(r"([\\*_`<\[\]|])", r"\\\1", prose)
    return re.sub(
        r"(?<![\w-])--[\w.\\-]*\w|\b\w+:/[\w/@.:\\\[\]-]*|\b[\w\\/]+\.(?:py|json|md|yaml|html)\b",
        lambda code: "`" + re.sub(r"\\(.)", r"\1", code[0]) + "`",
        escaped,
    )

"""What error messages tell a user to do can be done: options, commands and extras exist."""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from bert_core.tasks.catalog import TASKS
from serving.settings import ServerSettings
from workflows.settings import CommandLineSettings, field_names

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("bert_core", "workflows", "serving")
OPTION = re.compile(r"(?<![\w-])--(?:no-)?([a-z][\w.]*\w)")
COMMAND = re.compile(r"\b((?:workflows|infra|benchmarks)/[\w/]+\.(?:py|sh))")
MODULE = re.compile(r"python -m ((?:bert_core|serving|workflows|benchmarks)[\w.]*)")
EXTRA = re.compile(r"\.\[(\w+)\]")
REQUIRED = re.compile(r'\brequire\([^)]*extra="(\w+)"')
OF_OTHER_PROGRAMS = {"generate", "backend-store-uri", "help"}
"""Options of ray and mlflow, and the one that argparse and pydantic add."""


def remedies(source):
    """The strings of each `raise` and of each variable called remedy, with its line."""
    for node in ast.walk(ast.parse(source)):
        is_remedy = isinstance(node, ast.Assign) and "remedy" in ast.unparse(node.targets[0])
        if isinstance(node, ast.Raise) or is_remedy:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def all_remedies():
    for package in PACKAGES:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            for line, text in remedies(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(REPOSITORY)}:{line}", text


def every_subclass(kind):
    for subclass in kind.__subclasses__():
        yield subclass
        yield from every_subclass(subclass)


@pytest.fixture(scope="module")
def known_options():
    """Every option of every command, and of every task."""
    for path in sorted((REPOSITORY / "workflows").rglob("*.py")):
        if path.name.endswith("settings.py") or path.parent.name == "workflows":
            import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))
    names = set(field_names(ServerSettings))
    for settings in every_subclass(CommandLineSettings):
        names |= set(field_names(settings))
    for task in TASKS.values():
        names |= {f"options.{name}" for name in type(task).model_fields}
    for path in sorted((REPOSITORY / "serving").glob("*.py")):  # those of argparse
        names |= set(re.findall(r'add_argument\(\s*"--(\w+)"', path.read_text(encoding="utf-8")))
    return names


def test_an_option_that_a_remedy_names_exists(known_options):
    assert {"tokenizer", "rows.objective", "options.header", "cache_gib"} <= known_options
    named = [(place, option) for place, text in all_remedies() for option in OPTION.findall(text)]
    assert len(named) > 50
    missing = [
        each for each in named if each[1] not in known_options and each[1] not in OF_OTHER_PROGRAMS
    ]
    assert not missing


def test_a_command_that_a_remedy_names_exists():
    named = [(place, name) for place, text in all_remedies() for name in COMMAND.findall(text)]
    assert len(named) > 5
    assert not [each for each in named if not (REPOSITORY / each[1]).is_file()]
    for place, text in all_remedies():
        for module in MODULE.findall(text):
            path = REPOSITORY.joinpath(*module.split("."))
            assert path.is_dir() or path.with_suffix(".py").is_file(), (place, module)


def test_an_extra_that_a_remedy_names_exists():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    named = [(place, name) for place, text in all_remedies() for name in EXTRA.findall(text)]
    for path in (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")):
        named += [(path, name) for name in REQUIRED.findall(path.read_text(encoding="utf-8"))]
    assert len(named) > 6 and not [each for each in named if each[1] not in extras]


def test_what_is_looked_for_is_found():
    source = 'if x:\n    raise UserError("a", b, f"use --wrong.option {c} or .[none]")\n'
    ((line, text),) = [remedy for remedy in remedies(source) if "--" in remedy[1]]
    assert line == 2 and OPTION.findall(text) == ["wrong.option"]

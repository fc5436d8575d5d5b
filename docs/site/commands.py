"""Reference pages of the commands, generated from what their `--help` is made of."""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout, suppress

from bert_core.command_help import CommandHelp, Option
from bert_core.tasks.catalog import TASKS
from serving import new_key, watch
from workflows.cli import FINETUNING, OTHER_HELP, STAGES, VERBS, command_help

GUIDES = {
    "ablate": "ablations",
    "extract": "features",
    "mine-negatives": "search",
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

TASK_OPTIONS = "--options."


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
    yield f"# bertline {verb}"
    guide = GUIDES.get(verb, verb)
    if guide:
        file = verb.replace("-", "_")
        program = "python -m serving" if verb == "serve" else f"python workflows/{file}.py"
        yield f"The same as `{program}`. Guide: [{guide}](../guides/{guide}.md)."
    usual = command_help(verb)
    yield from help_page(usual, "##")
    for arguments in OTHER_HELP.get(verb, ()):
        page = command_help(verb, *arguments.split())
        if page.options != usual.options:
            yield f"## {arguments}"
            yield from help_page(page, "###")
    if verb in FINETUNING:
        yield from features_options(verb)
        yield from task_options(verb)
    if verb == "serve":
        for module in (new_key, watch):
            yield f"## python -m {module.__name__}\n\n```text\n{printed_help(module.main)}```"


def help_page(page: CommandHelp, heading: str) -> Iterator[str]:
    """The summary, the examples, and a table for each section."""
    details = [each for each in page.details if not each.startswith("The options are those of")]
    yield "\n\n".join(_text(each) for each in (page.summary, *details))
    if page.examples:
        lines = (f"# {each.purpose}\n{page.program} {each.arguments}" for each in page.examples)
        yield "```sh\n" + "\n".join(line.rstrip() for line in lines) + "\n```"
    if page.common:
        title = "Common settings" if page.sections else "Settings"
        yield f"{heading} {title}\n\n{table(page.common)}"
    for section in page.sections:
        own = [option for option in section.options if not option.name.startswith(TASK_OPTIONS)]
        if own:
            yield f"{heading} {section.title}"
            if section.summary:
                yield f"{_text(section.summary[0].upper() + section.summary[1:])}."
            yield table(own)


def features_options(verb: str) -> Iterator[str]:
    """What `--approach features` adds to the options of a run, or changes."""
    usual = command_help(verb, "--task", "ner").options
    features = command_help(verb, "--approach", "features", "--task", "ner").options
    other = [option for option in features if option not in usual and option.name != "--approach"]
    yield (
        "## --approach features\n\nTrains a BiLSTM over the hidden states of an encoder that stays"
        " unchanged, for tagging tasks. Dropout options are not used. These options are other or"
        f" have another default:\n\n{table(other)}"
    )


def task_options(verb: str) -> Iterator[str]:
    """The options of each kind of task, and where tasks of one kind have other defaults."""
    yield "## Options of tasks\n\n`--task` decides which `--options.NAME` exist."
    kinds: dict[tuple[str, ...], dict[str, list[Option]]] = {}
    for task in TASKS:
        options = command_help(verb, "--task", task).options
        own = [option for option in options if option.name.startswith(TASK_OPTIONS)]
        kinds.setdefault(tuple(option.name for option in own), {})[task] = own
    shown: dict[str, list[Option]] = {}
    for names, tasks in kinds.items():
        first, usual = next(iter(tasks.items()))
        like = next((task for task, known in shown.items() if _are_in(known, names)), None)
        about = "" if like is None else f"The options of `{like}`, and these:\n\n"
        more = [option for option in usual if option not in shown.get(like or "", [])]
        yield f"### {', '.join(tasks)}\n\n{about}{table(more)}"
        shown[first] = usual
        changes = [
            f"- `{task}`: {', '.join(f'`{e.name} {e.default}`' for e in own if e not in usual)}"
            for task, own in tasks.items()
            if own != usual
        ]
        if changes:
            yield "Other defaults:\n\n" + "\n".join(changes)


def table(options: Iterable[Option]) -> str:
    """Options as a table of two columns, so that a narrow screen has room for it."""
    lines = ["| option | |", "|---|---|"]
    for option in options:
        kind = ", ".join(f"`{each}`" for each in option.choices) or option.type
        if option.required:
            kind += ", required"
        if option.default:
            kind += f", default `{option.default}` {option.unit}".rstrip()
        elif option.unit:
            kind += f", {option.unit}"
        names = "<br>".join(f"`{name}`" for name in (option.name, option.other_name) if name)
        lines.append(f"| {names} | <small>{kind}</small><br>{_text(option.description)} |")
    return "\n".join(lines)


def printed_help(main: Callable[[list[str]], int]) -> str:
    """What a program prints for `--help`."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main(["--help"])
    return printed.getvalue()


def _are_in(options: Iterable[Option], names: Iterable[str]) -> bool:
    return {option.name for option in options} <= set(names)


def _text(prose: str) -> str:
    """Prose of a help text as Markdown: options and addresses as code, nothing as markup."""
    escaped = re.sub(r"([\\*_`<\[\]|])", r"\\\1", prose)
    return re.sub(
        r"(?<![\w-])--[\w.\\-]*\w|\b\w+:/[\w/@.:\\\[\]-]*|\b[\w\\/]+\.(?:py|json|md|yaml|html)\b",
        lambda code: "`" + re.sub(r"\\(.)", r"\1", code[0]) + "`",
        escaped,
    )

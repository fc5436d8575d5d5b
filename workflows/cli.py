"""The console script `bertline`: one program for every command, and shell completion.

`bertline VERB …` is `python workflows/VERB.py …`, and `bertline serve …` is `python -m serving …`.
Only the module of the chosen command is imported, so `bertline --help` loads no torch.
"""

import io
import os
import runpy
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from bert_core.errors import UserError, nearest

if TYPE_CHECKING:
    from bert_core.command_help import CommandHelp

STAGES = {
    "Data": {
        "prepare": "Convert text to token shards",
        "mine-negatives": "Find wrong passages that look right, to train search",
    },
    "Training": {
        "pretrain": "Pre-train a BERT encoder",
        "adapt": "Continue the pre-training of an encoder on your text",
        "finetune": "Fine-tune an encoder on a task",
        "tune": "Search hyperparameters of fine-tuning",
        "ablate": "Compare variants of the pre-training recipe",
    },
    "Measuring": {
        "evaluate": "Measure a model on labelled data, with 95 % intervals",
        "audit": "Find label errors in training data, and what they cost",
        "reproduce": "Repeat a finished run and compare every figure",
    },
    "Using": {
        "predict": "Write predictions of a fine-tuned model for text files",
        "extract": "Write hidden states or embeddings for text files",
        "serve": "Serve models over HTTP",
        "demo": "Run the whole pipeline on this machine, offline",
    },
    "Operating": {
        "quantize": "Write an int8 copy of a model and measure the loss",
        "export": "Write a model as a graph for ONNX Runtime or OpenVINO",
        "promote": "Promote a registered version to champion, or roll back",
        "registry": "Print the lineage of a registered version",
        "completion": "Print the completion script of bash, zsh or fish",
    },
}
"""The verbs by stage of the life-cycle, each with its line in `bertline --help`."""
VERBS = {verb: summary for verbs in STAGES.values() for verb, summary in verbs.items()}

PRESETS = {"adapt": ("pretrain", "--preset", "adapt")}
"""Verbs that are another one with arguments."""
OTHER_HELP = {
    "evaluate": ["--suite glue", "--suite table7", "--suite pictures"],
    "promote": ["rollback", "history"],
    "registry": ["lineage"],
}
"""Arguments with which the help of a verb lists other options."""
FINETUNING = ("finetune", "tune", "audit")
"""Verbs whose options depend on --task, and whose presets are files without names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; 2 for an unknown one."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb, rest = (given[0], given[1:]) if given else ("--help", [])
    try:
        if verb in ("-h", "--help"):
            print(overview())
        elif verb == "--version":
            print(f"bertline {version('bertline')}")
        elif verb not in VERBS:
            raise UserError(f"unknown command{nearest(verb, VERBS)}", verb, "see bertline --help")
        elif verb != "completion":
            return run(verb, rest)
        elif rest in (["-h"], ["--help"]):
            from bert_core.command_help import format_help

            print(format_help(completion_help()))
        else:
            print(completion_script(rest))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def overview() -> str:
    """The help of the program: a line for each verb, at most 80 characters wide."""
    lines = ["usage: bertline COMMAND [OPTIONS]", ""]
    for stage, verbs in STAGES.items():
        for number, (verb, summary) in enumerate(verbs.items()):
            lines.append(f"{'' if number else stage:<10} {verb:<14} {summary}")
    return "\n".join([*lines, "", "bertline COMMAND --help lists options; bertline --version"])


def run(verb: str, arguments: Sequence[str]) -> int:
    """Runs one command under the program name `bertline VERB`; returns its exit code."""
    module, *preset = PRESETS.get(verb, (verb,))
    if verb == "adapt" and "--report" in arguments:
        verb, module, preset = "ablate", "ablate", ["--study", "adaptation", *preset]
        arguments = [argument for argument in arguments if argument != "--report"]
    # In the folder of the program: Ray takes from there where its workers find modules.
    program = os.path.join(os.path.dirname(sys.argv[0]), f"bertline {verb}")  # noqa: PTH118, PTH120
    sys.argv = [program, *arguments]
    if verb == "serve":  # a program of its own: the packages do not import each other
        runpy.run_module("serving", run_name="__main__")
        return 0  # not reached: the program exits
    name = module.replace("-", "_")
    return import_module(f"workflows.{name}").main([*preset, *arguments])


SHELLS = ("bash", "zsh", "fish")


def completion_help() -> "CommandHelp":
    """The help of `completion`, which has no settings."""
    from bert_core.command_help import CommandHelp, Example, Option

    destinations = {
        "bash": "~/.local/share/bash-completion/completions/bertline",
        "zsh": "~/.zfunc/_bertline",
        "fish": "~/.config/fish/completions/bertline.fish",
    }
    shell = Option("SHELL", "text", "", "", "the shell", SHELLS, required=True)
    return CommandHelp(
        program="bertline completion",
        summary="Prints a script that completes commands, options and their choices.",
        details=("Write it once, and again after each update.",),
        examples=tuple(
            Example(f"complete in {shell}", f"{shell} > {path}")
            for shell, path in destinations.items()
        ),
        common=(shell,),
        sections=(),
    )


def completion_script(arguments: Sequence[str]) -> str:
    """The script for one shell; raises `UserError` for a shell without one."""
    shell = arguments[0] if len(arguments) == 1 else " ".join(arguments)
    if shell not in SHELLS:
        raise UserError("no completion script", shell or "no shell", f"one of {', '.join(SHELLS)}")
    options = {verb: options_of(verb) for verb in VERBS if verb != "completion"}
    if shell == "fish":
        return "\n".join(_fish_lines(options))
    names = [f'    {verb}) choices="{" ".join(found)}" ;;' for verb, found in options.items()]
    cases = _CASES.replace("OPTIONS", "\n".join(names)).replace(
        "VALUES", "\n".join(_values(options))
    )
    script = _BASH if shell == "bash" else _ZSH
    return script.replace("VERBS", " ".join(VERBS)).replace("CASES", cases)


def command_help(verb: str, *arguments: str) -> "CommandHelp":
    """What `bertline VERB ARGUMENTS --help` prints, as data; see OTHER_HELP for arguments."""
    from bert_core.command_help import HelpShown

    if verb == "completion":
        return completion_help()
    typed = sys.argv
    sys.argv = ["bertline"]
    try:
        with redirect_stdout(io.StringIO()):
            run(verb, [*arguments, "--help"])
    except HelpShown as shown:
        return shown.page
    finally:
        sys.argv = typed
    raise AssertionError(f"{verb} {arguments} has no help")


def options_of(verb: str) -> dict[str, list[str]]:
    """The options of a verb, as its help lists them, with the choices of those that have any."""
    from bert_core.tasks.catalog import TASKS
    from workflows.settings import LAYERS

    others = [each.split() for each in OTHER_HELP.get(verb, [])]
    if verb in FINETUNING:
        others += [["--task", task] for task in TASKS]
        others.append(["--approach", "features", "--task", "tagging"])
    options: dict[str, list[str]] = {}
    for arguments in ([], *others):
        for option in command_help(verb, *arguments).options:
            for name in filter(None, (option.name, option.other_name)):
                if name.startswith("--"):
                    options.setdefault(name, list(option.choices))
    for option, value in (other[:2] for other in others if len(other) > 1):
        options[option] = [*dict.fromkeys([*options[option], value])]
    for name, folder in LAYERS.items():
        if f"--{name}" in options and not (name == "preset" and verb in FINETUNING):
            options[f"--{name}"] = sorted(path.stem for path in folder.glob("*.yaml"))
    return options


def _actions(verb: str) -> str:
    """The words that may follow a verb."""
    if verb == "completion":
        return " ".join(SHELLS)
    return " ".join(each for each in OTHER_HELP.get(verb, []) if not each.startswith("-"))


def _values(options: dict[str, dict[str, list[str]]]) -> Iterable[str]:
    """Cases of `VERB PREVIOUS_WORD CURRENT_WORD` where one of a few words is expected."""
    for verb in VERBS:
        for option, choices in options.get(verb, {}).items():
            if choices:
                yield f'    "{verb} {option} "*) choices="{" ".join(choices)}" ;;'
        if _actions(verb):
            yield f'    "{verb} {verb} "*) choices="{_actions(verb)}" ;;'


def _fish_lines(options: dict[str, dict[str, list[str]]]) -> Iterable[str]:
    for verb, summary in VERBS.items():
        text = shlex.quote(summary)
        yield f"complete -c bertline -n __fish_use_subcommand -f -a {verb} -d {text}"
        of_verb = f"complete -c bertline -n '__fish_seen_subcommand_from {verb}'"
        if _actions(verb):
            yield f"{of_verb} -a '{_actions(verb)}'"
        for option, choices in options.get(verb, {}).items():
            values = f" -x -a '{' '.join(choices)}'" if choices else ""
            yield f"{of_verb} -l {option.removeprefix('--')}{values}"


# After an option without choices stands a value, such as a path, unless it begins with a dash.
_CASES = r"""  case "$verb" in
OPTIONS
  esac
  case "$verb $previous $current" in
    *" "*" -"*) ;;
VALUES
    *" -"*) choices="" ;;
  esac"""

_BASH = r"""_bertline() {
  local verb="${COMP_WORDS[1]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local current="${COMP_WORDS[COMP_CWORD]}" choices=""
CASES
  [ "$COMP_CWORD" = 1 ] && choices="VERBS --help --version"
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
}
complete -o default -F _bertline bertline"""

_ZSH = r"""#compdef bertline
_bertline() {
  local verb="$words[2]" previous="$words[CURRENT-1]" current="$words[CURRENT]" choices=""
CASES
  [ "$CURRENT" = 2 ] && choices="VERBS --help --version"
  compadd -- ${=choices} || _files
}
if [ "$funcstack[1]" = _bertline ]; then _bertline "$@"; else compdef _bertline bertline; fi"""


if __name__ == "__main__":
    sys.exit(main())

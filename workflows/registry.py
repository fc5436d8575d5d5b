"""The registry command: `python workflows/registry.py lineage NAME@ALIAS`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from bert_core.errors import UserError, nearest
from workflows.command import run_command
from workflows.runs.tracker import default_tracking_uri
from workflows.settings import CommandLineSettings, default_storage, parse_command_line


class LineageSettings(CommandLineSettings):
    """Prints the lineage of a registered model: run, code, settings, data, encoder, back to text.

    One paragraph for each model, starting with the version itself.
    """

    model: CliPositionalArg[str] = Field(
        description="NAME@ALIAS or NAME/3, with or without models:/"
    )
    json_: bool = Field(default=False, alias="json", description="print everything as JSON")
    storage: str = Field(
        default_factory=default_storage,
        description="folder of the MLflow store; by default ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (see `run_command`)."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _command(given)(given[1:]))


def _command(given: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    name = given[0] if given else "--help"
    if name in ("-h", "--help"):
        usage = f"usage: {Path(sys.argv[0]).name} {USAGE}"
        return lambda _: bool(print(usage)) or True
    if name not in COMMANDS:
        raise UserError(f"unknown command{nearest(name, COMMANDS)}", name, "see --help")
    return COMMANDS[name]


def _lineage(arguments: Sequence[str]) -> bool:
    settings = parse_command_line(LineageSettings, arguments)
    # Not at the top: it loads torch, which --help does not need.
    from workflows.versions.lineage import chain_lines, trace

    storage = Path(settings.storage).expanduser()
    entries = trace(settings.model, settings.tracking_uri or default_tracking_uri(storage))
    if settings.json_:
        print(json.dumps([asdict(entry) for entry in entries], indent=1, ensure_ascii=False))
    else:
        print("\n".join(chain_lines(entries)))
    return True


COMMANDS = {"lineage": _lineage}
USAGE = "lineage NAME@ALIAS   the lineage, back to the text (lineage --help)"


if __name__ == "__main__":
    sys.exit(main())

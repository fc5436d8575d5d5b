"""The registry command: `python workflows/registry.py lineage NAME@ALIAS`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import ClassVar

from pydantic import Field
from pydantic_settings import CliPositionalArg

from bert_core.command_help import Example, Guide
from bert_core.errors import UserError, nearest
from workflows.command import command
from workflows.settings import StoreSettings, parse_command_line


class LineageSettings(StoreSettings):
    """Prints the lineage of a registered model: run, code, settings, data, encoder, back to text.

    One paragraph for each model, starting with the version itself.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("the lineage of the champion", "mrpc@champion"),
            Example("of a version, as JSON", "mrpc/3 --json"),
            Example("in another MLflow", "mrpc@champion --tracking_uri http://mlflow.example:5000"),
        ),
        positional="model",
        action="lineage",
    )

    model: CliPositionalArg[str] = Field(
        description="NAME@ALIAS or NAME/3, with or without models:/"
    )
    json_: bool = Field(default=False, alias="json", description="print everything as JSON")


main = command(lambda given: _command(given)(given[1:]))


def _command(given: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    name = given[0] if given else "--help"
    if name in ("-h", "--help"):
        return lambda _: _lineage(["--help"])  # the only command
    if name not in COMMANDS:
        raise UserError(f"unknown command{nearest(name, COMMANDS)}", name, "see --help")
    return COMMANDS[name]


def _lineage(arguments: Sequence[str]) -> bool:
    settings = parse_command_line(LineageSettings, arguments)
    # Not at the top: it loads torch, which --help does not need.
    from workflows.versions.lineage import chain_lines, trace

    entries = trace(settings.model, settings.mlflow_uri)
    if settings.json_:
        print(json.dumps([asdict(entry) for entry in entries], indent=1, ensure_ascii=False))
    else:
        print("\n".join(chain_lines(entries)))
    return True


COMMANDS = {"lineage": _lineage}


if __name__ == "__main__":
    sys.exit(main())

"""Promotes a version of a registered model to champion: `python workflows/promote.py --help`.

`promote.py --name N --version V` applies a gate first, `promote.py rollback --name N` restores the
previous champion, `promote.py history --name N` shows who did what, when and why.
"""

import sys
from collections.abc import Sequence

from bert_core.errors import UserError, nearest
from workflows.command import command
from workflows.promotion.decision import HistorySettings, PromoteSettings, RollbackSettings
from workflows.settings import parse_command_line

ACTIONS = ("promote", "rollback", "history")
"""The optional first word; promote by default."""


main = command(lambda given: run(given))
"""Runs the command; returns its exit code (see `run_command`), 3 if the gate refuses."""


def run(arguments: Sequence[str]) -> bool:
    """Runs the action of the first word; raises `UserError` for an unknown one."""
    from workflows.promotion import decision

    action, rest = "promote", list(arguments)
    if rest and not rest[0].startswith("-"):
        action = rest.pop(0)
    if action == "promote":
        return decision.promote(parse_command_line(PromoteSettings, rest))
    if action == "rollback":
        return decision.roll_back(parse_command_line(RollbackSettings, rest))
    if action == "history":
        return decision.show_history(parse_command_line(HistorySettings, rest))
    what = f"unknown action{nearest(action, ACTIONS)}"
    raise UserError(what, action, f"one of {', '.join(ACTIONS)}")


if __name__ == "__main__":
    sys.exit(main())

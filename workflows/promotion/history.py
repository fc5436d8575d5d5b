"""Who moved the champion of a model, when, why: entries, each a tag of the registered model.

Tags stay with the model, whatever the store behind MLflow; each is written whole or not at all,
and none is ever written over by another entry.
"""

import getpass
import platform
import re
import time
from collections.abc import Collection, Mapping, Sequence
from textwrap import shorten
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

HISTORY_TAG = "bertline.history."
"""What the tags begin with; the number of the entry follows, and what makes it one of its own."""

MOST_SHOWN = 60
"""Characters of what came of a gate; the tags of the version have it all."""
_KEY = re.compile(re.escape(HISTORY_TAG) + r"(\d+)(-\w+)?")


class Entry(BaseModel):
    """One promotion or rollback.

    It is written as `moving` before the alias is moved, as the last thing before it, and as `done`
    after it. Killed between the two, it is for the next promotion to find out which of `done` and
    `interrupted` it was: by the alias.
    """

    model_config = ConfigDict(frozen=True)

    action: Literal["promote", "rollback"]
    state: Literal["moving", "done", "interrupted", "refused"]
    before: int | None = Field(description="the version that was champion, none before the first")
    after: int = Field(description="the version that was to be champion")
    who: str = Field(description="user@host")
    when: str = Field(description="UTC, to the second")
    why: str
    gate: str = Field(default="", description="what came of the gate, in one line")

    def settled(self, champion: int | None) -> "Entry":
        """The entry as it turned out to be, given who is champion after it."""
        if self.state != "moving":
            return self
        state = "done" if champion == self.after else "interrupted"
        return self.model_copy(update={"state": state})


def read_entries(tags: Mapping[str, str]) -> dict[str, Entry]:
    """The entries among a model's tags, in their order; a tag that is none of ours is left out."""
    found = {}
    for key in sorted(key for key in tags if _KEY.fullmatch(key)):
        try:
            found[key] = Entry.model_validate_json(tags[key])
        except ValidationError:
            continue
    return found


def next_key(tags: Mapping[str, str], token: str) -> str:
    """The tag of an entry after all that there are; the token makes it unlike any other."""
    numbers = [int(match[1]) for key in tags if (match := _KEY.fullmatch(key))]
    return f"{HISTORY_TAG}{max(numbers, default=0) + 1:06d}-{token[:8]}"


def tag_of(entry: Entry) -> str:
    """What is written: an object with all fields, as JSON."""
    return entry.model_dump_json()


def version_before(
    entries: Sequence[Entry], champion: int | None, existing: Collection[int]
) -> int | None:
    """The version that was champion before the present one and still exists; None where none was.

    A rollback takes back what it rolls back: after it, the version before is one further back. A
    champion that was set by hand, seen by none of the entries, is not counted.
    """
    champions: list[int] = []
    for entry in entries:
        if entry.state != "done":
            continue
        if entry.action == "rollback":
            while champions and champions[-1] != entry.after:
                champions.pop()
        elif entry.before is not None and entry.before not in champions[-1:]:
            champions.append(entry.before)
        if entry.after not in champions[-1:]:
            champions.append(entry.after)
    while champions and (champions[-1] == champion or champions[-1] not in existing):
        champions.pop()
    return champions[-1] if champions else None


def utc_now() -> str:
    """The time as the history has it, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())


def user_and_host() -> str:
    """Who does this, on which machine; a container may have users without names."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{platform.node() or 'unknown'}"


def history_table(entries: Sequence[Entry]) -> list[list[str]]:
    """Titles and lines, newest last, for `aligned_table`."""
    actions = {"promote": "promoted", "rollback": "rolled back"}
    lines = [["when (UTC)", "who", "what", "from", "to", "gate", "why"]]
    for each in entries:
        what = actions[each.action] if each.state == "done" else f"{each.action}: {each.state}"
        before = "none" if each.before is None else str(each.before)
        gate = shorten(each.gate, MOST_SHOWN, placeholder=" …")
        lines.append([each.when, each.who, what, before, str(each.after), gate, each.why])
    return lines

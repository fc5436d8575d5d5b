"""A version becomes champion, or does not: what happens, in which order, and what is kept of it.

The order is what makes a kill at any moment harmless: all that is kept of the decision is written
first, then the alias is moved, by one transaction of MLflow's, and nothing depends on what comes
after. What a killed promotion left open, the next one settles.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError
from serving.registry import fetch_model
from workflows.command import RefusedError
from workflows.promotion.aliases import ModelRegistry, ModelState, Version, open_registry
from workflows.promotion.gate import Gate, default_gate, read_gate, require_data
from workflows.promotion.history import (
    Entry,
    history_table,
    next_key,
    read_entries,
    tag_of,
    user_and_host,
    utc_now,
    version_before,
)
from workflows.promotion.lock import Held, promotion_lock
from workflows.promotion.settings import HistorySettings, PromoteSettings, RollbackSettings
from workflows.reporting.render import aligned_table
from workflows.tracking.tracker import default_tracking_uri, without_machine_paths

if TYPE_CHECKING:
    from workflows.promotion.gate_lines import GateLine

# Imports within functions load torch, which takes seconds, and only a promotion needs it.

GATE_TAG = "gate."
"""What the tags of a version begin with that say what a gate found."""
REPORT_TAG = f"{GATE_TAG}report"
MOST_TAG = 5000
"""Characters of a tag, in the oldest MLflow that may be at the other end."""


def promote(settings: PromoteSettings) -> bool:
    """Moves the alias if the gate passes; True when the version is champion.

    Raises `RefusedError` where the gate does not pass, `UserError` for what cannot be judged and
    where another promotion is under way.
    """
    gate = _gate_of(settings)
    uri = _tracking_uri(settings)
    with open_registry(settings.name, uri) as registry, promotion_lock(registry) as held:
        state = settled(registry)
        version = registry.version(settings.version)
        champion = state.champion
        if champion == version.number:
            print(f"champion version {champion} of {settings.name} already")
            return True
        against = "there is no champion yet" if champion is None else f"against champion {champion}"
        print(f"gate     version {version.number} of {settings.name}: {against}", flush=True)
        lines = _judged(settings, gate, registry, version, champion)
        entry = Entry(
            action="promote",
            state="moving",
            before=champion,
            after=version.number,
            who=user_and_host(),
            when=utc_now(),
            why=settings.reason,
            gate=_keep(registry, version, gate, lines),
        )
        if not all(each.passed for each in lines):
            entry = entry.model_copy(update={"state": "refused"})
            registry.set_tag(next_key(registry.state().tags, held.token), tag_of(entry))
            raise RefusedError(f"version {version.number} of {settings.name}, {entry.gate}")
        _move(registry, held, entry)
    return True


def roll_back(settings: RollbackSettings) -> bool:
    """Moves the alias to the version before, by the history; True when it is done.

    Raises `UserError` where there is none.
    """
    uri = _tracking_uri(settings)
    with open_registry(settings.name, uri) as registry, promotion_lock(registry) as held:
        state = settled(registry)
        entries = list(read_entries(state.tags).values())
        before = version_before(entries, state.champion, registry.versions())
        if before is None:
            where = "there is no champion" if state.champion is None else f"of {state.champion}"
            what = f"no version of {settings.name} was champion before"
            raise UserError(what, where, "promote.py history shows what was; promote a version")
        entry = Entry(
            action="rollback",
            state="moving",
            before=state.champion,
            after=before,
            who=user_and_host(),
            when=utc_now(),
            why=settings.reason,
        )
        _move(registry, held, entry)
    return True


def show_history(settings: HistorySettings) -> bool:
    """Prints the entries, oldest first, and who is champion; True when it is done."""
    with open_registry(settings.name, _tracking_uri(settings)) as registry:
        state = registry.state()
    entries = [each.settled(state.champion) for each in read_entries(state.tags).values()]
    if entries:
        print(aligned_table(history_table(entries), ()).rstrip())
    champion = "none" if state.champion is None else f"version {state.champion}"
    print(f"champion {champion}")
    return True


def settled(registry: ModelRegistry) -> ModelState:
    """The model's state, with what a killed promotion left open settled; needs the lock."""
    state = registry.state()
    changes = {
        key: tag_of(entry.settled(state.champion))
        for key, entry in read_entries(state.tags).items()
        if entry.state == "moving"
    }
    for key, value in changes.items():
        registry.set_tag(key, value)
    return ModelState({**state.tags, **changes}, state.aliases)


def _move(registry: ModelRegistry, held: Held, entry: Entry) -> None:
    """Writes the entry, moves the alias, and says so in the entry."""
    held.check()
    state = registry.state()
    if state.champion != entry.before:
        what = f"the champion of {registry.name} was moved by another program"
        where = f"from {_named(entry.before)} to {_named(state.champion)} meanwhile"
        raise UserError(what, where, "repeat the command: it is another one to compare with")
    key = next_key(state.tags, held.token)
    registry.set_tag(key, tag_of(entry))
    registry.move_champion(entry.after)
    with suppress(UserError):  # it is champion, whatever the entry says: the next one settles it
        registry.set_tag(key, tag_of(entry.model_copy(update={"state": "done"})))
    before = f"before it {_named(entry.before)}"
    print(f"champion version {entry.after} of {registry.name}, {before}", flush=True)


def _judged(
    settings: PromoteSettings,
    gate: Gate,
    registry: ModelRegistry,
    version: Version,
    champion: int | None,
) -> list["GateLine"]:
    """Fetches both versions, measures, and prints the table."""
    from workflows.promotion.gate_checks import Contender, Sampling, judge
    from workflows.promotion.gate_lines import table

    def contender(each: Version) -> Contender:
        cache = Path(settings.storage).expanduser() / "models"
        uri = f"models:/{registry.name}/{each.number}"
        return Contender(each, fetch_model(uri, registry.tracking_uri, cache).folder)

    other = None if champion is None else contender(registry.version(str(champion)))
    sampling = Sampling(settings.num_resamples, settings.seed, settings.max_tokens)
    lines = judge(gate, contender(version), other, sampling)
    print(f"\n{aligned_table(table(lines), ()).rstrip()}\n", flush=True)
    return lines


def _keep(
    registry: ModelRegistry, version: Version, gate: Gate, lines: Sequence["GateLine"]
) -> str:
    """Writes what was found into the version's tags and its run's artifacts; one line of it."""
    from workflows.promotion.gate_lines import record, summary

    when = utc_now()
    text = json.dumps({"when": when} | record(lines, gate), ensure_ascii=False)
    report: dict[str, Any] = json.loads(without_machine_paths(text))
    figures: dict[str, float] = {}
    for name, value in (pair for each in lines for pair in each.values.items()):
        figures[name] = min(value, figures.get(name, value))  # of several checks the worst
    tags = {f"{GATE_TAG}{_key(name)}": f"{value:.6g}" for name, value in figures.items()}
    tags |= {f"{GATE_TAG}verdict": summary(lines)[:MOST_TAG], f"{GATE_TAG}when": when}
    shortest = json.dumps(report, ensure_ascii=False, separators=(",", ":"))
    if len(shortest) <= MOST_TAG:
        tags[REPORT_TAG] = shortest
    registry.replace_version_tags(version.number, GATE_TAG, tags)
    if version.run_id is not None:
        path = f"gate/{registry.name}-{version.number}-{re.sub(r'[^0-9]', '', when)}.json"
        try:
            registry.log_json(version.run_id, report, path)
        except UserError as error:
            print(f"note     measurements are in the version's tags alone: {error}")
    return summary(lines)[: MOST_TAG // 2]


def _gate_of(settings: PromoteSettings) -> Gate:
    gate = default_gate(settings.data) if settings.gate is None else read_gate(settings.gate)
    if settings.data is not None:
        gate = gate.model_copy(update={"data": settings.data})
    require_data(gate, str(settings.gate))
    return gate


def _tracking_uri(settings: HistorySettings) -> str:
    return settings.tracking_uri or default_tracking_uri(Path(settings.storage).expanduser())


def _named(version: int | None) -> str:
    return "none" if version is None else f"version {version}"


def _key(name: str) -> str:
    """A name as MLflow takes it in the key of a tag."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)[:200]

"""Promotion, rollback and history of a registered model: settings and actions.

The order of the steps makes a kill at any moment harmless: the record of the decision is written
first, then the alias is moved in one transaction, and nothing depends on what follows.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from bert_core.command_help import Example, Guide
from bert_core.errors import UserError
from serving.registry import fetch_model
from workflows.command import RefusedError
from workflows.promotion.champion import (
    Entry,
    ModelRegistry,
    Version,
    history_table,
    move_champion,
    named,
    next_key,
    open_registry,
    promotion_lock,
    read_entries,
    user_and_host,
    utc_now,
    version_before,
)
from workflows.promotion.gate import (
    Gate,
    GateLine,
    default_gate,
    read_gate,
    record,
    require_data,
    summary,
    table,
)
from workflows.reporting.render import aligned_lines
from workflows.runs.tracker import without_machine_paths
from workflows.settings import StoreSettings

# Imports within functions load torch, which takes seconds, and only a promotion needs it.

GATE_TAG = "gate."
"""Prefix of the version's tags with the gate's measurements."""
REPORT_TAG = f"{GATE_TAG}report"
MOST_TAG = 5000
"""Characters of a tag in the oldest MLflow server."""
MOST_REASON = 1000
"""Characters of a reason: an entry of the history has to fit into a tag."""


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


Reason = Annotated[
    str,
    Field(max_length=MOST_REASON, description="why, for the history"),
    AfterValidator(_one_line),
]


class HistorySettings(StoreSettings):
    """Shows who moved the alias champion of a registered model, when and why.

    Includes refused promotions, and those that were killed before the move.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("all decisions", "--name mrpc"),
            Example("in another storage folder", "--name mrpc --storage runs"),
            Example("in another MLflow", "--name mrpc --tracking_uri http://mlflow.example:5000"),
        ),
        action="history",
    )

    name: str = Field(description="name of the registered model")


class RollbackSettings(HistorySettings):
    """Moves the alias champion back to the previous champion of the history, without a gate.

    Repeated, it goes one version further back.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("restore the previous champion", "--name mrpc"),
            Example("with a reason for the history", "--name mrpc --reason complaints"),
            Example("in another MLflow", "--name mrpc --tracking_uri http://mlflow.example:5000"),
        ),
        action="rollback",
    )

    reason: Reason = ""


class PromoteSettings(HistorySettings):
    """Moves the alias champion of a registered model to a version that passes a gate.

    Both versions are measured on the same data, latency and memory on this machine; a table shows
    requirements and measurements. A drop is judged by the 95 % interval of the paired difference:
    all of it has to lie above the allowed drop, so too few examples lead to a refusal. Without data
    the metrics recorded in training are compared, if both versions have the same data.

    Without --gate: with --data, no drop of the task's criterion beyond 0.02;
    without, no drop of the recorded metric. The first champion has no requirements then.

    Exit codes: 0 the version is champion, 2 the input is wrong or another promotion of this model
    is under way, 3 the gate refused. Also: promote.py rollback --name NAME restores the previous
    champion, promote.py history --name NAME shows who moved the alias, when and why.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "the challenger, unless its recorded metrics are worse",
                "--name mrpc --version challenger",
            ),
            Example(
                "a version, measured against the champion on held-out data",
                "--name mrpc --version 3 --data test.tsv",
            ),
            Example(
                "with requirements of your own",
                '--name mrpc --version 3 --gate gate.yaml --reason "new data"',
            ),
        ),
    )

    version: str = Field(description="version: number, or alias such as challenger")
    gate: Path | None = Field(
        default=None, description="YAML file of the requirements, see docs/promotion.md"
    )
    data: str | None = Field(
        default=None,
        description="held-out data instead of the gate's: file, folder with the splits, or"
        " hf://OWNER/NAME[:CONFIG]",
    )
    reason: Reason = ""
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples of the 95 % interval of a drop"
    )
    seed: int = Field(default=0, ge=0, description="seed of the bootstrap samples and the checks")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")


def promote(settings: PromoteSettings) -> bool:
    """Moves the alias if the gate passes; returns True.

    Raises `RefusedError` if the gate fails, `UserError` if the version cannot be judged or another
    promotion is under way.
    """
    gate = _gate_of(settings)
    opened = open_registry(settings.name, settings.mlflow_uri)
    with opened as registry, promotion_lock(registry) as is_locked:
        state = registry.state()
        version = registry.version(settings.version)
        champion = state.champion
        if champion == version.number:
            print(f"champion version {champion} of {settings.name} already")
            return True
        against = "there is no champion yet" if champion is None else f"against champion {champion}"
        print(f"gate     version {version.number} of {settings.name}: {against}", flush=True)
        lines = _judged(settings, gate, registry, version, champion)
        verdict = _keep(registry, version, gate, lines)
        entry = _entry("promote", champion, version.number, settings.reason, verdict)
        if not all(line.passed for line in lines):
            entry = entry.model_copy(update={"state": "refused"})
            registry.set_tag(next_key(registry.state().tags), entry.model_dump_json())
            raise RefusedError(f"version {version.number} of {settings.name}, {entry.gate}")
        _move(registry, entry, is_locked=is_locked)
    return True


def roll_back(settings: RollbackSettings) -> bool:
    """Moves the alias to the previous champion of the history; returns True.

    Raises `UserError` if there is none.
    """
    opened = open_registry(settings.name, settings.mlflow_uri)
    with opened as registry, promotion_lock(registry) as is_locked:
        state = registry.state()
        known = read_entries(state.tags).values()
        entries = [entry.settled(state.champion) for entry in known]
        before = version_before(entries, state.champion, registry.versions())
        if before is None:
            where = "there is no champion" if state.champion is None else f"of {state.champion}"
            what = f"no version of {settings.name} was champion before"
            raise UserError(what, where, "promote.py history shows what was; promote a version")
        entry = _entry("rollback", state.champion, before, settings.reason)
        _move(registry, entry, is_locked=is_locked)
    return True


def show_history(settings: HistorySettings) -> bool:
    """Prints the entries, oldest first, and the champion; returns True."""
    with open_registry(settings.name, settings.mlflow_uri) as registry:
        state = registry.state()
    entries = [entry.settled(state.champion) for entry in read_entries(state.tags).values()]
    if entries:
        print("\n".join(aligned_lines(history_table(entries))))
    champion = "none" if state.champion is None else f"version {state.champion}"
    print(f"champion {champion}")
    return True


def _entry(
    action: Literal["promote", "rollback"], before: int | None, after: int, why: str, gate: str = ""
) -> Entry:
    who, when = user_and_host(), utc_now()
    return Entry(
        action=action,
        state="moving",
        before=before,
        after=after,
        who=who,
        when=when,
        why=why,
        gate=gate,
    )


def _move(registry: ModelRegistry, entry: Entry, *, is_locked: bool) -> None:
    move_champion(registry, entry, is_locked=is_locked)
    before = f"before it {named(entry.before)}"
    print(f"champion version {entry.after} of {registry.name}, {before}", flush=True)


def _judged(
    settings: PromoteSettings,
    gate: Gate,
    registry: ModelRegistry,
    version: Version,
    champion: int | None,
) -> list[GateLine]:
    from workflows.promotion.gate_checks import Contender, Sampling, judge

    def contender(candidate: Version) -> Contender:
        cache = settings.storage_folder / "models"
        uri = f"models:/{registry.name}/{candidate.number}"
        return Contender(candidate, fetch_model(uri, registry.tracking_uri, cache).folder)

    other = None if champion is None else contender(registry.version(str(champion)))
    sampling = Sampling(settings.num_resamples, settings.seed, settings.max_tokens)
    lines = judge(gate, contender(version), other, sampling)
    print("", *aligned_lines(table(lines)), "", sep="\n", flush=True)
    return lines


def _keep(registry: ModelRegistry, version: Version, gate: Gate, lines: Sequence[GateLine]) -> str:
    """Writes the measurements to the version's tags and its run's artifacts; returns a summary."""
    from workflows.promotion.gate_measurements import machine

    when = utc_now()
    text = json.dumps({"when": when} | record(lines, gate, machine()), ensure_ascii=False)
    report: dict[str, Any] = json.loads(without_machine_paths(text))
    figures: dict[str, float] = {}
    for name, value in (pair for line in lines for pair in line.values.items()):
        figures[name] = min(value, figures.get(name, value))  # the worst of several checks
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


def _key(name: str) -> str:
    """Replaces the characters that MLflow refuses in keys of tags."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)[:200]

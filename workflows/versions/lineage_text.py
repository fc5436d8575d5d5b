"""The way back from a version to the text, as people read it: a paragraph for each model on it."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError
from workflows.training.job import flattened

if TYPE_CHECKING:
    from workflows.versions.registry_lineage import Station

SHOWN_PACKAGES = ("torch", "tokenizers")
MEASURED = ("dev/", "heldout/")
NOT_OF_THE_RECIPE = ("tracking.", "checkpoint.", "cluster.")
"""What settings begin with that decide nothing about the weights; --json has them too."""
_LABEL_WIDTH = 12
_WIDTH = 100


def chain_lines(stations: Sequence["Station"]) -> list[str]:
    """The lines to print, of hashes the first twelve digits."""
    lines: list[str] = []
    for station in stations:
        lines += [*([""] if lines else []), *_paragraph(station)]
    return lines


def _paragraph(station: "Station") -> list[str]:
    aliases = "".join(f"  @{alias}" for alias in station.aliases)
    facts = [
        ("registered", station.registered),
        ("content", _hash(station.content_sha256)),
        ("run", _run(station)),
        ("code", _code(station)),
        ("settings", _settings(station)),
        ("data", _data(station.data)),
        ("tokenizer", _tokenizer(station)),
        *(("text", _source(each)) for each in station.data.get("text", [])),
        ("figures", _figures(station.metrics)),
        ("encoder", _encoder(station)),
        ("ends here", station.end),
    ]
    head = station.version or f"run {station.run}, of which no version is registered"
    return [head + aliases, *(line for label, text in facts if text for line in _fact(label, text))]


def _fact(label: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, _WIDTH - _LABEL_WIDTH - 2, break_long_words=False)
    labels = [label, *[""] * (len(wrapped) - 1)]
    return [f"  {each:{_LABEL_WIDTH}}{line}" for each, line in zip(labels, wrapped, strict=True)]


def _hash(sha256: str | None) -> str:
    return f"sha256 {sha256[:12]}" if sha256 else ""


def _run(station: "Station") -> str:
    if station.begun is None:
        known = ", ".join(filter(None, [station.run, station.run_id]))
        return f"{known}, which MLflow does not have any more" if known else "not recorded"
    return f"{station.run}, {station.run_id} in {station.experiment}, begun {station.begun}" + (
        "" if station.status == "FINISHED" else f", {station.status}"
    )


def _code(station: "Station") -> str:
    if station.git_commit is None:
        commit = "of no git checkout"
    else:
        changed = ", and changes that are in no commit" if station.git_dirty else ""
        commit = f"commit {station.git_commit[:12]}{changed}"
    packages = [f"{name} {station.packages.get(name)}" for name in SHOWN_PACKAGES]
    known = [each for each in packages if not each.endswith(" None")]
    return ", ".join(filter(None, [commit, _hash(station.code_sha256), *known]))


def _settings(station: "Station") -> str:
    if station.settings is None:
        gone = "settings.yaml is not among the run's artifacts"
        return ", ".join(filter(None, [_hash(station.settings_sha256), gone]))
    parts = [_hash(station.settings_sha256) or "settings.yaml of the run"]
    if station.settings_are_as_recorded is False:
        parts.append("settings.yaml has been changed since")
    changed = other_than_default(station.settings)
    return f"{', '.join(parts)}: {', '.join(changed)}" if changed else ", ".join(parts)


def other_than_default(settings: dict[str, Any]) -> list[str]:
    """What a run's settings say that today's defaults do not, `optimizer.name lamb`."""
    defaults = flattened(_defaults(settings))
    return [
        f"{name} {value}"
        for name, value in flattened(settings).items()
        if defaults.get(name) != value and not name.startswith(NOT_OF_THE_RECIPE)
    ]


def _defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """The defaults of the command that the settings are for; none of a task that is no more."""
    from workflows.finetuning.settings import settings_class
    from workflows.pretraining.settings import PretrainSettings

    if "task" not in settings:
        return PretrainSettings().portable()
    try:
        chosen = settings_class(settings["task"], settings.get("approach", "finetune"))
    except UserError:
        return {}
    return chosen.model_validate({"data": "", "model": ""}).portable() | {"task": ""}


def _data(data: dict[str, Any]) -> str:
    splits = data.get("splits", {})
    counted = "documents" if data.get("kind") == "token shards" else "examples"
    counts = [f"{splits[name][counted]:,} {name}" for name in sorted(splits, reverse=True)]
    tokens = sum(split["tokens"] for split in splits.values())
    parts = [data.get("source") or data.get("kind"), _hash(data.get("sha256"))]
    if counts:
        parts += [f"{' and '.join(counts)} {counted}", f"{tokens:,} tokens"]
    return ", ".join(filter(None, parts))


def _tokenizer(station: "Station") -> str:
    vocabulary = station.data.get("vocabulary")
    entries = f"{vocabulary:,} entries" if vocabulary else ""
    return ", ".join(filter(None, [_hash(station.tokenizer_sha256), entries]))


def _source(source: dict[str, Any]) -> str:
    size = f"{source['num_documents']:,} documents, {source['num_bytes'] / 1e6:,.1f} MB"
    version = f", version {source['version']}" if source.get("version") else ""
    return f"{source['text']}: {size}, {_hash(source['sha256'])}{version}"


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith(MEASURED)
    )


def _encoder(station: "Station") -> str:
    encoder = station.encoder
    if encoder is None:
        return ""
    made = f"of the run {encoder.run}" if encoder.run and not encoder.version else ""
    named = encoder.version or encoder.name
    return ", ".join(filter(None, [named, made, _hash(encoder.content_sha256 or encoder.sha256)]))

"""The lineage of a version, back to the text: each model, its run and its data."""

import hashlib
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError
from bert_core.strict_files import parse_json, parse_yaml
from serving.registry import Address, as_user_error, lineage_of_tags, without_password
from workflows.promotion.champion import open_registry
from workflows.reproduction.recorded_run import RunAtMlflow, find_run, read_artifact, utc
from workflows.reproduction.run_origin import (
    CODE_TAG,
    DATA,
    ENCODER_NAME,
    ENCODER_RUN,
    ENCODER_SHA256,
    SETTINGS,
    SETTINGS_TAG,
    TOKENIZER_TAG,
)
from workflows.runs.mlflow_run import open_client
from workflows.runs.tracker import without_machine_paths
from workflows.training.job import flattened
from workflows.versions.registration import (
    CONTENT_TAG,
    PARENT_CONTENT_TAG,
    PARENT_RUN_ID_TAG,
    PARENT_TAG,
    version_of_content,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

SHOWN_PACKAGES = ("torch", "tokenizers")
MEASURED = ("dev/", "heldout/")
NOT_OF_THE_RECIPE = ("tracking.", "checkpoint.", "cluster.")
"""Prefixes of settings that do not affect the weights; --json has them too."""
_LABEL_WIDTH = 12
_WIDTH = 100
PACKAGE_TAG = "version."
"""Prefix of the tags with package versions."""


@dataclass(frozen=True)
class Encoder:
    """The encoder that a run started from: hashes, and its version and run if known."""

    name: str
    sha256: str | None
    content_sha256: str | None
    version: str | None
    run: str | None
    run_id: str | None


@dataclass(frozen=True)
class LineageEntry:
    """A model of the lineage: its version, its run, and the inputs of the run.

    What is not recorded is None or empty. `settings` are those of settings.yaml, and
    `settings_sha256` is its hash when the run began. `data` is data.json, or the hash alone. `end`
    says why the lineage ends here; None if it continues with `encoder`.
    """

    version: str | None
    aliases: list[str]
    registered: str | None
    content_sha256: str | None
    run: str | None
    run_id: str | None
    experiment: str | None
    status: str | None
    begun: str | None
    git_commit: str | None
    git_dirty: bool | None
    code_sha256: str | None
    packages: dict[str, str]
    settings: dict[str, Any] | None
    settings_sha256: str | None
    settings_are_as_recorded: bool | None
    data: dict[str, Any]
    tokenizer_sha256: str | None
    metrics: dict[str, float]
    encoder: Encoder | None
    end: str | None = field(default=None)


def trace(model: str, tracking_uri: str) -> list[LineageEntry]:
    """Returns the lineage of `NAME@ALIAS` or `NAME/3`, the version itself first.

    Raises `UserError`, with the nearest name, for an unknown model or version, and if MLflow does
    not answer.
    """
    address = _address(model)
    with open_registry(address.name, tracking_uri) as registry:
        number = registry.version(address.alias or str(address.version)).number
        remedy = f"is MLflow at {without_password(tracking_uri)}?"
        with as_user_error(f"no lineage of {address}", remedy):
            client = open_client(tracking_uri)
            version = client.get_model_version(address.name, str(number))
            return list(_entries(client, version))


def _address(model: str) -> Address:
    try:
        return Address.of(model if model.startswith("models:/") else f"models:/{model}")
    except UserError as error:
        remedy = "write NAME@ALIAS or NAME/3, with models:/ before it or without"
        raise UserError("not the version of a model", model, remedy) from error


def _version_or_none(client: "MlflowClient", name: str, number: str) -> "ModelVersion | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(name, number)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _entries(client: "MlflowClient", version: "ModelVersion") -> Iterator[LineageEntry]:
    entry: LineageEntry | None = _of_version(client, version)
    seen = set()
    while entry is not None:
        seen.add(entry.version or entry.run_id)
        parent = _parent(client, entry.encoder) if entry.encoder else None
        if parent is not None and (parent.version or parent.run_id) in seen:
            parent = None
        yield replace(entry, end=None if parent else _end(entry))
        entry = parent


def _of_version(client: "MlflowClient", version: "ModelVersion") -> LineageEntry:
    run = find_run(client, version.run_id) if version.run_id else None
    entry = _entry(client, run, dict(version.tags))
    return replace(
        entry,
        version=f"models:/{version.name}/{version.version}",
        aliases=sorted(version.aliases),
        registered=utc(version.creation_timestamp),
        run_id=version.run_id or None,
    )


def _entry(
    client: "MlflowClient", run: RunAtMlflow | None, version_tags: dict[str, str]
) -> LineageEntry:
    """Builds an entry of a run and its version's tags; of the tags alone if it was deleted."""
    tags = (run.tags if run else {}) | version_tags
    lineage = lineage_of_tags(tags)
    text = read_artifact(client, run, SETTINGS) if run else None
    wanted = tags.get(SETTINGS_TAG)
    data = read_artifact(client, run, DATA) if run else None
    return LineageEntry(
        version=None,
        aliases=[],
        registered=None,
        content_sha256=tags.get(CONTENT_TAG),
        run=run.name if run else tags.get("run"),
        run_id=run.run_id if run else None,
        experiment=run.experiment if run else None,
        status=run.status if run else None,
        begun=run.begun if run else None,
        git_commit=lineage.git_commit,
        git_dirty=lineage.git_dirty,
        code_sha256=tags.get(CODE_TAG),
        packages={
            name.removeprefix(PACKAGE_TAG): value
            for name, value in tags.items()
            if name.startswith(PACKAGE_TAG)
        },
        settings=None if text is None else parse_yaml(without_machine_paths(text), SETTINGS),
        settings_sha256=wanted,
        settings_are_as_recorded=None if None in (text, wanted) else _sha256(text) == wanted,
        data={"sha256": lineage.data_sha256} if data is None else parse_json(data.encode(), DATA),
        tokenizer_sha256=tags.get(TOKENIZER_TAG),
        metrics=lineage.metrics,
        encoder=_encoder(tags),
    )


def _sha256(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()


def _encoder(tags: dict[str, str]) -> Encoder | None:
    content, sha256 = tags.get(PARENT_CONTENT_TAG), tags.get(ENCODER_SHA256)
    if content is None and sha256 is None:
        return None
    return Encoder(
        name=tags.get(ENCODER_NAME, "an encoder without a name"),
        sha256=sha256,
        content_sha256=content,
        version=tags.get(PARENT_TAG),
        run=tags.get(ENCODER_RUN),
        run_id=tags.get(PARENT_RUN_ID_TAG),
    )


def _parent(client: "MlflowClient", encoder: Encoder) -> LineageEntry | None:
    """Finds the encoder: its version, else a version with its content, else its run."""
    if encoder.version is not None:
        address = Address.of(encoder.version)
        version = _version_or_none(client, address.name, str(address.version))
        # In another store, or after the model was registered anew, the number is another model's.
        known = version and encoder.content_sha256 in (None, version.tags.get(CONTENT_TAG))
        if version is not None and known:
            return _of_version(client, version)
    if encoder.content_sha256 is not None:
        version = version_of_content(client, encoder.content_sha256, encoder.run_id)
        if version is not None:
            return _of_version(client, version)
    run = find_run(client, encoder.run_id) if encoder.run_id else None
    return _entry(client, run, {}) if run else None


def _end(entry: LineageEntry) -> str | None:
    encoder = entry.encoder
    if encoder is None:
        if entry.data.get("text"):
            return None
        if entry.data.get("kind") == "token shards":
            return "the index of the token shards does not say of which text they are"
        return "neither an encoder nor token shards are recorded"
    if encoder.run is None and encoder.run_id is None and encoder.version is None:
        return (
            f"the folder {encoder.name} does not say which run made it, and no version here has"
            " its content: it came from elsewhere"
        )
    known = {"version": encoder.version, "run": encoder.run, "run id": encoder.run_id}
    recorded = ", ".join(f"{name} {value}" for name, value in known.items() if value)
    return f"the encoder is of {recorded}, which this MLflow does not have"


def chain_lines(entries: Sequence[LineageEntry]) -> list[str]:
    """Formats the lineage: a paragraph per entry, hashes as twelve digits."""
    lines: list[str] = []
    for entry in entries:
        lines += [*([""] if lines else []), *_paragraph(entry)]
    return lines


def _paragraph(entry: LineageEntry) -> list[str]:
    aliases = "".join(f"  @{alias}" for alias in entry.aliases)
    facts = [
        ("registered", entry.registered),
        ("content", _hash(entry.content_sha256)),
        ("run", _run(entry)),
        ("code", _code(entry)),
        ("settings", _settings(entry)),
        ("data", _data(entry.data)),
        ("tokenizer", _tokenizer(entry)),
        *(("text", _source(each)) for each in entry.data.get("text", [])),
        ("figures", _figures(entry.metrics)),
        ("encoder", _encoder_text(entry)),
        ("ends here", entry.end),
    ]
    head = entry.version or f"run {entry.run}, of which no version is registered"
    return [head + aliases, *(line for label, text in facts if text for line in _fact(label, text))]


def _fact(label: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, _WIDTH - _LABEL_WIDTH - 2, break_long_words=False)
    labels = [label, *[""] * (len(wrapped) - 1)]
    return [f"  {each:{_LABEL_WIDTH}}{line}" for each, line in zip(labels, wrapped, strict=True)]


def _hash(sha256: str | None) -> str:
    return f"sha256 {sha256[:12]}" if sha256 else ""


def _run(entry: LineageEntry) -> str:
    if entry.begun is None:
        known = ", ".join(filter(None, [entry.run, entry.run_id]))
        return f"{known}, which MLflow does not have any more" if known else "not recorded"
    return f"{entry.run}, {entry.run_id} in {entry.experiment}, begun {entry.begun}" + (
        "" if entry.status == "FINISHED" else f", {entry.status}"
    )


def _code(entry: LineageEntry) -> str:
    if entry.git_commit is None:
        commit = "of no git checkout"
    else:
        changed = ", and changes that are in no commit" if entry.git_dirty else ""
        commit = f"commit {entry.git_commit[:12]}{changed}"
    packages = [f"{name} {entry.packages.get(name)}" for name in SHOWN_PACKAGES]
    known = [each for each in packages if not each.endswith(" None")]
    return ", ".join(filter(None, [commit, _hash(entry.code_sha256), *known]))


def _settings(entry: LineageEntry) -> str:
    if entry.settings is None:
        gone = "settings.yaml is not among the run's artifacts"
        return ", ".join(filter(None, [_hash(entry.settings_sha256), gone]))
    parts = [_hash(entry.settings_sha256) or "settings.yaml of the run"]
    if entry.settings_are_as_recorded is False:
        parts.append("settings.yaml has been changed since")
    changed = other_than_default(entry.settings)
    return f"{', '.join(parts)}: {', '.join(changed)}" if changed else ", ".join(parts)


def other_than_default(settings: dict[str, Any]) -> list[str]:
    """Lists the settings that differ from the present defaults, as `optimizer.name lamb`."""
    defaults = flattened(_defaults(settings))
    return [
        f"{name} {value}"
        for name, value in flattened(settings).items()
        if defaults.get(name) != value and not name.startswith(NOT_OF_THE_RECIPE)
    ]


def _defaults(settings: dict[str, Any]) -> dict[str, Any]:
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


def _tokenizer(entry: LineageEntry) -> str:
    vocabulary = entry.data.get("vocabulary")
    entries = f"{vocabulary:,} entries" if vocabulary else ""
    return ", ".join(filter(None, [_hash(entry.tokenizer_sha256), entries]))


def _source(source: dict[str, Any]) -> str:
    size = f"{source['num_documents']:,} documents, {source['num_bytes'] / 1e6:,.1f} MB"
    version = f", version {source['version']}" if source.get("version") else ""
    return f"{source['text']}: {size}, {_hash(source['sha256'])}{version}"


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith(MEASURED)
    )


def _encoder_text(entry: LineageEntry) -> str:
    encoder = entry.encoder
    if encoder is None:
        return ""
    made = f"of the run {encoder.run}" if encoder.run and not encoder.version else ""
    named = encoder.version or encoder.name
    return ", ".join(filter(None, [named, made, _hash(encoder.content_sha256 or encoder.sha256)]))

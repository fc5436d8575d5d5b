"""A finished run as it was recorded: its settings, inputs and all figures.

Read from a run folder or from MLflow, as `workflows.runs.mlflow_run` sent it.
"""

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError, nearest
from bert_core.strict_files import parse_json, parse_yaml, read_bounded, read_json_object
from bert_core.text_encoding import decode_text
from bert_core.training.checkpoint import CheckpointInfo, newest_checkpoint, read_checkpoint
from serving.registry import (
    as_user_error,
    check_location,
    mlflow_environment,
    store_exists,
    without_password,
)
from workflows.reproduction.code_files import CodeState, parse_code, read_code
from workflows.reproduction.run_origin import (
    CODE,
    DATA,
    OUTCOME,
    SETTINGS,
    SETTINGS_TAG,
    outcome_of,
)
from workflows.runs.folder import RunFolder
from workflows.runs.journal import read_records
from workflows.runs.mlflow_run import open_client
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    read_json,
)
from workflows.versions.registration import parent_version

if TYPE_CHECKING:
    from mlflow import MlflowClient

Values = Mapping[tuple[int, str], float]
"""The figures of a run by step and name."""
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RecordedRun:
    """A finished run; what is not recorded is empty.

    `settings` are those of settings.yaml. `places` are the settings that it leaves out, data and
    encoder as they were typed; only a run folder has them. `data` is data.json, `code` the states
    of the code under which the run was started, `outcome` is written by `write_outcome`.
    """

    name: str
    settings: dict[str, Any]
    places: dict[str, Any]
    tags: dict[str, str]
    data: dict[str, Any]
    code: list[CodeState]
    outcome: dict[str, Any]
    values: Values

    @property
    def data_sha256(self) -> str | None:
        """The hash of the training data."""
        return self.tags.get("data.sha256")


@dataclass(frozen=True)
class RunAtMlflow:
    """A run at MLflow; `begun` is in UTC, `artifacts` are the top-level names."""

    run_id: str
    name: str
    experiment: str
    status: str
    begun: str
    tags: dict[str, str]
    params: dict[str, str]
    artifacts: tuple[str, ...]


@dataclass(frozen=True)
class FetchedRun:
    """A run with the texts of its artifacts by name, and all its figures."""

    run: RunAtMlflow
    texts: dict[str, str]
    values: dict[tuple[int, str], float]


def read_recorded_run(run: str, storage: Path, tracking_uri: str) -> RecordedRun:
    """Reads the run of this name in the storage, or of this id at MLflow.

    Prefers the run folder, which has more. Raises `UserError` for an unknown or unfinished run.
    """
    folders = {path.parent.name: path.parent for path in storage.glob("runs/*/recipe.json")}
    for folder in folders.values():
        if run in (folder.name, read_json(folder / STATE_NAME).get("run_id")):
            return _of_folder(RunFolder(folder))
    if _RUN_ID.fullmatch(run) is None:
        remedy = "give the name of a run under --storage, or the id of a run at MLflow"
        raise UserError(f"no such run{nearest(run, folders)}", run, remedy)
    return _of_mlflow(fetch_run(run, tracking_uri, (SETTINGS, CODE, DATA, OUTCOME)))


def _of_folder(folder: RunFolder) -> RecordedRun:
    checkpoint = _last_checkpoint(folder)
    artifacts = folder.path / ARTIFACTS_NAME
    recipe = read_json_object(folder.recipe)
    tags = {"data.sha256": recipe.get("data"), "encoder.sha256": recipe.get("encoder")}
    known = {name: value for name, value in tags.items() if value}
    known |= read_json(folder.path / SPECIFICATION_NAME).get("tags", {})
    if not folder.settings.is_file():
        raise UserError("no settings.yaml", str(folder.path), "the run cannot be reproduced")
    return RecordedRun(
        name=folder.name,
        settings=_settings(_read_text(folder.settings), known, folder.name),
        places=present_places(checkpoint.extra["settings"], folder.path.parent.parent),
        tags=known,
        data=read_json(artifacts / DATA),
        code=read_code(artifacts / CODE),
        outcome=read_json(artifacts / OUTCOME) or outcome_of(folder, checkpoint),
        values=journal_values(folder),
    )


def _read_text(path: Path) -> str:
    return decode_text(read_bounded(path), str(path))


def present_places(places: Mapping[str, Any], storage: Path) -> dict[str, Any]:
    """Adapts paths below the storage folder, which may have moved since the run began."""
    before = Path(str(places.get("storage", storage)))
    present = dict(places)
    for name, value in places.items():
        if isinstance(value, str) and value.startswith(f"{before}/"):
            here = storage / Path(value).relative_to(before)
            present[name] = str(here) if here.exists() else value
    return present


def _last_checkpoint(folder: RunFolder) -> CheckpointInfo:
    path, _ = newest_checkpoint(folder.checkpoints)
    if path is not None:
        checkpoint = read_checkpoint(path)
        if checkpoint.step == checkpoint.extra.get("total_steps"):
            return checkpoint
    what = f"run {folder.name} has not finished, or its last checkpoint is gone"
    raise UserError(what, str(folder.path), "let it finish first")


def _of_mlflow(fetched: FetchedRun) -> RecordedRun:
    run, texts = fetched.run, fetched.texts
    if run.status != "FINISHED":
        raise UserError(f"run {run.name} has not finished", run.status, "let it finish first")
    if SETTINGS not in texts:
        remedy = "name a run of pretrain.py or finetune.py"
        raise UserError("no settings.yaml among the run's artifacts", run.run_id, remedy)
    return RecordedRun(
        name=run.name,
        settings=_settings(texts[SETTINGS], run.tags, run.name),
        places={},
        tags=run.tags,
        data=parse_json(texts.get(DATA, "{}").encode(), f"{DATA} of {run.run_id}"),
        code=parse_code(texts.get(CODE, "[]")),
        outcome=parse_json(
            texts.get(OUTCOME, "{}").encode(), f"{OUTCOME} of {run.run_id}", allow_nan=True
        ),
        values=fetched.values,
    )


def _settings(text: str, tags: Mapping[str, str], name: str) -> dict[str, Any]:
    """Parses settings.yaml; raises `UserError` if it has changed since the run began."""
    recorded = tags.get(SETTINGS_TAG)
    if recorded is not None and hashlib.sha256(text.encode()).hexdigest() != recorded:
        what = "settings.yaml has changed since the run began"
        raise UserError(what, name, "restore the file; its sha256 is at MLflow")
    return parse_yaml(text, f"settings.yaml of {name}")


def journal_values(folder: RunFolder) -> Values:
    """Returns all figures of a run's journal by step and name."""
    return {
        (record.step, name): value
        for record in read_records(folder.path / JOURNAL_NAME)
        for name, value in record.metrics.items()
    }


def fetch_run(run_id: str, tracking_uri: str, names: Sequence[str]) -> FetchedRun:
    """Fetches a run with the named artifacts that it has; its tags have the encoder's version.

    Raises `UserError` for an unknown run, and if MLflow does not answer.
    """
    where = without_password(tracking_uri)
    if not store_exists(tracking_uri):
        remedy = "give another --storage or --tracking_uri"
        raise UserError(f"no run {run_id}", f"no MLflow store at {where}", remedy)
    problem = as_user_error(f"run {run_id} not read", f"is MLflow at {where}?")
    with problem, mlflow_environment(tracking_uri):
        client = open_client(tracking_uri)
        run = find_run(client, run_id)
        if run is None:
            raise UserError("no such run at MLflow", run_id, f"is it at {where}?")
        run = replace(run, tags=parent_version(client, run.tags) | run.tags)
        texts = {name: read_artifact(client, run, name) for name in names}
        return FetchedRun(
            run,
            {name: text for name, text in texts.items() if text is not None},
            metric_values(client, run),
        )


def find_run(client: "MlflowClient", run_id: str) -> RunAtMlflow | None:
    """Returns the run of this id; None if there is none or it was deleted.

    Raises `UserError` as `check_location` does for its artifacts.
    """
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None
    if run.info.lifecycle_stage != "active":
        return None
    check_location(str(run.info.artifact_uri), client.tracking_uri)
    return RunAtMlflow(
        run_id=run_id,
        name=run.info.run_name or run_id,
        experiment=client.get_experiment(run.info.experiment_id).name,
        status=run.info.status,
        begun=utc(run.info.start_time),
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        artifacts=tuple(artifact.path for artifact in client.list_artifacts(run_id)),
    )


def read_artifact(client: "MlflowClient", run: RunAtMlflow, name: str) -> str | None:
    """Returns the text of an artifact, or None if the run has none of this name."""
    if name not in run.artifacts:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run.run_id, name, folder)).read_text("utf-8")


def metric_values(client: "MlflowClient", run: RunAtMlflow) -> dict[tuple[int, str], float]:
    """Returns all training and evaluation metrics by step and name."""
    names = client.get_run(run.run_id).data.metrics
    return {
        (metric.step, name): metric.value
        for name in names
        if not name.startswith("system/")
        for metric in client.get_metric_history(run.run_id, name)
    }


def utc(milliseconds: int) -> str:
    """Formats a timestamp as UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

"""A run at MLflow, and the store it lies in: the place where tracking meets MLflow's client.

In: a run folder (`workflows.runs.tracker` says what is in it). Out: one MLflow run per run key
that holds each (step, name) once. MLflow is imported when it is first needed, in the sender's
process.
"""

import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from bert_core.disk import locked
from bert_core.errors import UserError, reason_of
from serving.registry import (
    artifact_root,
    check_location,
    local_path,
    sqlite_path,
    sqlite_uri,
)
from workflows.output_folder import check_folder
from workflows.runs.journal import JournalReader, Record
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    SYSTEM_JOURNAL_NAME,
    DatasetInput,
    TrackedRun,
    code_tags,
    read_json,
    summarize_tracking,
    without_machine_paths,
    write_json,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_KEY_TAG = "bertline.run_key"
MAX_METRICS_PER_CALL = 1000  # MLflow's limit
MAX_PARAMS_PER_CALL = 100  # MLflow's limit, for tags too
MAX_PAUSE_SECONDS = 30.0  # between attempts, while MLflow is away


_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
"""Tables and columns of a SQLite store that hold absolute addresses of artifacts."""


def create_store(tracking_uri: str) -> None:
    """Creates a SQLite store in write-ahead mode if there is none; a server's store is its own.

    Two processes that open a missing store break it for good, so it is made under a lock, beside
    its name, and renamed when it is whole. Takes about ten seconds once. In a store that is there
    the addresses are corrected if it was moved or copied (`correct_addresses`).
    """
    path = sqlite_path(tracking_uri)
    if path is None:
        return
    if path.is_dir():  # MLflow would try to open it for 100 seconds
        raise UserError("a folder, not a SQLite store", str(path), "give another tracking URI")
    if path.exists():
        correct_addresses(tracking_uri)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(path.name + ".lock")):
        if path.exists():
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        beside = path.with_name(path.name + ".new")
        for left in ("", "-journal", "-wal", "-shm"):  # SQLite would apply a killed process's log
            path.with_name(beside.name + left).unlink(missing_ok=True)
        store = SqlAlchemyStore(sqlite_uri(beside), artifact_location(tracking_uri))
        store.engine.dispose()
        with closing(sqlite3.connect(beside)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        beside.replace(path)


def correct_addresses(tracking_uri: str) -> None:
    """Makes the artifact addresses of a store that was moved or copied those of its new folder.

    MLflow keeps them absolute: a later run would write into the old folder, and what is in the new
    one would not be found. Addresses elsewhere than beside the store stay as they are. Raises
    `UserError` where the store was moved and cannot be written.
    """
    path, root = sqlite_path(tracking_uri), artifact_root(tracking_uri)
    assert path is not None and root is not None
    try:
        opened = sqlite3.connect(path, timeout=60)
    except sqlite3.Error:  # a folder of this name, or one that is closed: MLflow's to say
        return
    with closing(opened) as connection:
        try:
            moved = [old for old in _roots(connection) if _is_moved(connection, old, root)]
        except sqlite3.Error:  # not a store that MLflow can read as it is: that is its to say
            return
        try:
            with connection:
                for old in moved:
                    _replace_root(connection, old, root)
        except sqlite3.Error as error:
            command = f"python -m workflows.runs.sender create {quote(tracking_uri)}"
            raise UserError(
                f"the MLflow store was moved, and its addresses cannot be corrected, {error}",
                str(path),
                f"as its owner, run {command}",
            ) from error
    for old in moved:
        print(f"mlflow   artifacts that were at {old} are now at {root.as_uri()}", file=sys.stderr)


def _roots(connection: sqlite3.Connection) -> list[str]:
    """The folders of artifacts of all experiments that were created as `artifact_location` says."""
    query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE ?"
    return [location for (location,) in connection.execute(query, ["file:%/artifacts"])]


def _is_moved(connection: sqlite3.Connection, location: str, root: Path) -> bool:
    """Whether artifacts below a folder are below `root` now."""
    old = local_path(location)
    if old is None or old == root:
        return False
    with suppress(OSError):  # one of them is not there, or closed to this user
        if old.samefile(root):
            return False
    for table, column in _ADDRESSES[1:3]:
        query = f"SELECT {column} FROM {table} WHERE substr({column}, 1, ?) = ?"
        beginning = f"{location}/"
        for (address,) in connection.execute(query, [len(beginning), beginning]):
            path = local_path(address)
            if path is not None and (root / path.relative_to(old)).exists():
                return True
    return False


def _replace_root(connection: sqlite3.Connection, location: str, root: Path) -> None:
    new = root.as_uri()
    for table, column in _ADDRESSES:
        connection.execute(
            f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
            f" WHERE {column} = ? OR substr({column}, 1, ?) = ?",
            [new, len(location) + 1, location, len(location) + 1, f"{location}/"],
        )


def open_client(tracking_uri: str) -> "MlflowClient":
    """MLflow's client for a store that exists or is created here."""
    create_store(tracking_uri)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri, tracking_uri)


def check_artifacts(client: "MlflowClient", run_id: str) -> None:
    """Raises `UserError`, before a run's artifacts are written, as `check_location` does."""
    check_location(str(client.get_run(run_id).info.artifact_uri), client.tracking_uri)


def artifact_location(tracking_uri: str) -> str | None:
    """The artifact folder beside a SQLite store, as URI; None where the server has its own."""
    root = artifact_root(tracking_uri)
    return None if root is None else root.as_uri()


def _experiment_id(client: "MlflowClient", name: str) -> str:
    """The id of an experiment, which is created if there is none."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return client.create_experiment(name, artifact_location(client.tracking_uri))
    return experiment.experiment_id


class RunSender:
    """Sends what one run's journals hold and MLflow does not, in order, each (step, name) once.

    A record's time is part of what is sent, and MLflow's store keeps (name, time, step, value)
    once, so a request that is committed after its client gave up does no harm when it is sent
    again. Other stores are asked: at the start and after every failed call, for the newest step
    of each name. As a batch is sent only when the one before is confirmed, all older steps are
    there too.

    `tags` are set beside those that the run's own process has written down.
    """

    def __init__(self, run_folder: Path, tags: Mapping[str, str] | None = None) -> None:
        specification = read_json(run_folder / SPECIFICATION_NAME)
        if not specification:
            raise UserError("no tracked run", str(run_folder), "name the folder of a run")
        try:
            specification["tracking_uri"] = _present_uri(specification, run_folder)
            specification.pop("folder", None)
            dataset = specification.pop("dataset")
            run = TrackedRun(**specification, dataset=DatasetInput(**dataset) if dataset else None)
            self.run = replace(run, tags=run.tags | dict(tags or {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what, path = "damaged description of a run", str(run_folder / SPECIFICATION_NAME)
            raise UserError(what, path, "repeat the run's command, which writes it") from error
        self.run_folder = run_folder
        earlier = read_json(run_folder / STATE_NAME)
        self._ended_before = earlier.get("status"), earlier.get("description")
        self.state: dict[str, Any] = earlier | {"error": None, "status": None}
        self._uploaded: dict[str, list[int]] = self.state.setdefault("uploaded", {})
        self._readers = [
            JournalReader(run_folder / JOURNAL_NAME),
            JournalReader(run_folder / SYSTEM_JOURNAL_NAME),
        ]
        self._confirmed: dict[str, int] = {}
        self._client: MlflowClient | None = None
        self._certain = False  # that `_confirmed` is what the store has
        self._described = False

    def send_batch(self) -> bool:
        """Sends the next records, at most one call's worth; False when nothing is left.

        Raises whatever MLflow raises; the next call asks the store what arrived.
        """
        client = self._connect()
        for reader in self._readers:
            records = reader.peek(MAX_METRICS_PER_CALL)
            if records:
                self._send_records(client, records)
                reader.advance()
                self._save()
                return True
        return False

    def finish(self, status: str) -> None:
        """Uploads the artifacts and ends the run; its journal has to be sent before."""
        client = self._connect()
        self._upload(client)
        self._delete_empty_twins(client)
        client.set_terminated(self.run_id, status)
        self._save(status=status, description=self._description())

    def was_ended(self, status: str) -> bool:
        """Whether an earlier sender ended the run so and nothing is new since; asks files only."""
        return (
            self._ended_before == (status, self._description())
            and summarize_tracking(self.run_folder).unsent_records == 0
            and not any(self._new_artifacts())
        )

    def check(self) -> None:
        """Raises what MLflow raises when it is asked for the run."""
        self._certain = False
        self._connect()

    def note(self, error: BaseException) -> None:
        """Keeps the message of a failed call for the summary, and doubts what has arrived."""
        self._certain = False
        message = f"{type(error).__name__}: {error}"
        print(time.strftime("%Y-%m-%d %H:%M:%S"), message, file=sys.stderr)
        self._save(error=message[:500])

    def close(self) -> None:
        """Closes the journals, for a process that sends other runs after this one."""
        for reader in self._readers:
            reader.close()

    @property
    def run_id(self) -> str:
        """MLflow's id of the run, once connected."""
        return self.state["run_id"]

    def _connect(self) -> "MlflowClient":
        if self._client is None:
            self._client = open_client(self.run.tracking_uri)
        client = self._client
        if not self._certain:
            run = self._find_run(client) or self._create_run(client)
            self._save(run_id=run.info.run_id, experiment_id=run.info.experiment_id)
            newest = {metric.key: metric.step for metric in run.data.to_proto().metrics}
            if newest != self._confirmed:
                self._confirmed = newest
                for reader in self._readers:
                    reader.rewind()
            self._certain = True
        if not self._described:
            self._describe(client)
            self._described = True
        return client

    def _find_run(self, client: "MlflowClient") -> "Run | None":
        from mlflow.exceptions import MlflowException

        if "run_id" in self.state:
            try:
                run = client.get_run(self.run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            else:
                if run.info.lifecycle_stage == "active":
                    return run
        return next(iter(self._runs_of_this_key(client)), None)

    def _runs_of_this_key(self, client: "MlflowClient") -> "list[Run]":
        experiment = client.get_experiment_by_name(self.run.experiment)
        if experiment is None:
            return []
        condition = f"tags.`{RUN_KEY_TAG}` = '{self.run.run_key}'"
        order = ["attributes.start_time ASC", "attributes.run_id ASC"]
        return list(client.search_runs([experiment.experiment_id], condition, order_by=order))

    def _create_run(self, client: "MlflowClient") -> "Run":
        experiment = _experiment_id(client, self.run.experiment)
        tags = {RUN_KEY_TAG: self.run.run_key}
        return client.create_run(experiment, tags=tags, run_name=self.run.run_name)

    def _describe(self, client: "MlflowClient") -> None:
        from mlflow.entities import Param, RunTag

        run = client.get_run(self.run_id)
        client.update_run(self.run_id, status="RUNNING")
        here = {name: without_machine_paths(str(value)) for name, value in self.run.params.items()}
        there = run.data.params
        params = [Param(name, value) for name, value in here.items() if name not in there]
        # A param cannot change in MLflow; what a resumed run has otherwise, a tag says.
        tags = self.run.tags | {
            f"resumed.{name}": value
            for name, value in here.items()
            if there.get(name, value[:6000]) != value[:6000]
        }
        if self.run.dataset is not None:
            tags = tags | {"data.sha256": self.run.dataset.sha256}
        for start in range(0, len(params), MAX_PARAMS_PER_CALL):
            client.log_batch(self.run_id, params=params[start : start + MAX_PARAMS_PER_CALL])
        entries = [RunTag(name, without_machine_paths(str(value))) for name, value in tags.items()]
        for start in range(0, len(entries), MAX_PARAMS_PER_CALL):
            client.log_batch(self.run_id, tags=entries[start : start + MAX_PARAMS_PER_CALL])
        self._log_dataset(client, run)
        try:
            self._upload(client)
        except Exception as error:  # whatever a store of artifacts comes up with; `finish` repeats
            self.note(error)

    def _log_dataset(self, client: "MlflowClient", run: "Run") -> None:
        from mlflow.data.code_dataset_source import CodeDatasetSource
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import Dataset, DatasetInput, InputTag

        described = self.run.dataset
        if described is None or (run.inputs and run.inputs.dataset_inputs):
            return
        source = CodeDatasetSource({"source": without_machine_paths(described.source)})
        dataset = MetaDataset(source, described.name, described.sha256[:8]).to_dict()
        context = [InputTag("mlflow.data.context", "training")]
        client.log_inputs(self.run_id, [DatasetInput(Dataset(**dataset), context)])

    def _description(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self.run), sort_keys=True).encode()).hexdigest()

    def _upload(self, client: "MlflowClient") -> None:
        artifacts = list(self._new_artifacts())
        if artifacts:
            check_artifacts(client, self.run_id)
        for path, name, stamp in artifacts:
            parent = None if name.parent == Path() else str(name.parent)
            client.log_artifact(self.run_id, str(path), parent)
            self._uploaded[str(name)] = stamp
            self._save()

    def _new_artifacts(self) -> Iterator[tuple[Path, Path, list[int]]]:
        folder = self.run_folder / ARTIFACTS_NAME
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            stamp = [path.stat().st_mtime_ns, path.stat().st_size]
            if path.is_file() and self._uploaded.get(str(name)) != stamp:
                yield path, name, stamp

    def _send_records(self, client: "MlflowClient", records: list[Record]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(record.time * 1000), record.step)
            for record in records
            for name, value in record.metrics.items()
            if record.step > self._confirmed.get(name, -1)
        ]
        for start in range(0, len(metrics), MAX_METRICS_PER_CALL):
            batch = metrics[start : start + MAX_METRICS_PER_CALL]
            client.log_batch(self.run_id, metrics=batch)
            self._confirmed.update({metric.key: metric.step for metric in batch})

    def _delete_empty_twins(self, client: "MlflowClient") -> None:
        """Removes what a creation left that was answered too late to be noticed."""
        for run in self._runs_of_this_key(client):
            if run.info.run_id != self.run_id and not run.data.metrics:
                client.delete_run(run.info.run_id)

    def _save(self, **changes: object) -> None:
        self.state |= changes
        if self._certain:
            self.state["confirmed"] = self._confirmed
        try:
            write_json(self.run_folder / STATE_NAME, self.state)
        except OSError as error:  # it holds nothing that the store does not know
            print(f"cannot write {STATE_NAME}: {error}", file=sys.stderr)


def _present_uri(specification: Mapping[str, str], run_folder: Path) -> str:
    """The tracking URI of a run; of a folder that was moved with its store, where that is now."""
    uri, folder = specification["tracking_uri"], specification.get("folder")
    store = sqlite_path(uri)
    if store is None or folder is None or Path(folder) == run_folder.absolute():
        return uri
    moved = Path(os.path.normpath(run_folder.absolute() / os.path.relpath(store, folder)))
    return sqlite_uri(moved) if moved.exists() else uri


def _writable(folder: Path) -> Path:
    check_folder(folder, "--report")
    return folder


ReportFolder = Annotated[Path, AfterValidator(_writable)]
"""The setting of a folder for a report, refused where none can be written."""


def log_report(
    files: Sequence[Path],
    *,
    tracking_uri: str,
    experiment: str,
    run_name: str,
    params: Mapping[str, object],
    metrics: Mapping[str, float],
) -> str | None:
    """Logs files as artifacts; returns the run's id.

    The report is there without MLflow, so where that does not answer the reason is printed in one
    line, and None is returned.
    """
    from mlflow.entities import Metric, Param, RunTag

    try:
        client = open_client(tracking_uri)
        run = client.create_run(_experiment_id(client, experiment), run_name=run_name)
        run_id = run.info.run_id
        client.log_batch(
            run_id,
            metrics=[Metric(name, value, 0, 0) for name, value in metrics.items()],
            params=[
                Param(name, without_machine_paths(str(value))) for name, value in params.items()
            ],
            tags=[RunTag(*tag) for tag in code_tags(Path(__file__).parent).items()],
        )
        check_artifacts(client, run_id)
        for path in files:
            client.log_artifact(run_id, str(path))
        client.set_terminated(run_id)
    except Exception as error:  # whatever a server, a store or a disk comes up with
        print(f"mlflow   not logged: {type(error).__name__}: {reason_of(error)}")
        return None
    print(f"mlflow   experiment {experiment}, run {run_name}")
    return run_id

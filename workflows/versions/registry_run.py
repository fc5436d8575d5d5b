"""A run as MLflow has it: the id goes in; names, tags, artifacts and every metric come out.

The reading half of what `workflows.tracking.mlflow_run` sends.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bert_core.errors import UserError
from serving.registry import (
    as_user_error,
    check_location,
    mlflow_environment,
    store_exists,
    without_password,
)
from workflows.registry import parent_version
from workflows.tracking.mlflow_run import open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class RunAtMlflow:
    """What MLflow says of a run; `begun` is in UTC, `artifacts` are the names at the top."""

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
    """A run with the texts of its artifacts, by their names, and all its figures."""

    run: RunAtMlflow
    texts: dict[str, str]
    values: dict[tuple[int, str], float]


def fetch_run(run_id: str, tracking_uri: str, names: Sequence[str]) -> FetchedRun:
    """The run and those of the named artifacts that it has; its tags name the encoder's version.

    Raises `UserError` where there is no such run, and where MLflow does not answer.
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
    """The run of this id; None where MLflow has none, or no more.

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
        artifacts=tuple(each.path for each in client.list_artifacts(run_id)),
    )


def read_artifact(client: "MlflowClient", run: RunAtMlflow, name: str) -> str | None:
    """The text of an artifact; None where the run has none of this name."""
    if name not in run.artifacts:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run.run_id, name, folder)).read_text("utf-8")


def metric_values(client: "MlflowClient", run: RunAtMlflow) -> dict[tuple[int, str], float]:
    """The values of all metrics of training and evaluation, by step and name."""
    names = client.get_run(run.run_id).data.metrics
    return {
        (metric.step, name): metric.value
        for name in names
        if not name.startswith("system/")
        for metric in client.get_metric_history(run.run_id, name)
    }


def utc(milliseconds: int) -> str:
    """A moment as people read it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

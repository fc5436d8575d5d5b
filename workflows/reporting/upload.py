"""The folder setting of a report, and the upload of its files and metrics as a run at MLflow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from bert_core.errors import reason_of
from workflows.output_folder import check_folder
from workflows.tracking.mlflow_run import artifact_location, check_artifacts, open_client
from workflows.tracking.tracker import code_tags, without_machine_paths


def _writable(folder: Path) -> Path:
    check_folder(folder, "--report")
    return folder


ReportFolder = Annotated[Path, AfterValidator(_writable)]
"""A setting: the folder of a report; refused if it cannot be written."""


def log_report(
    files: Sequence[Path],
    *,
    tracking_uri: str,
    experiment: str,
    run_name: str,
    params: Mapping[str, object],
    metrics: Mapping[str, float],
) -> str | None:
    """Logs files as artifacts of a new run and returns its id.

    The report does not need MLflow: if that fails, the reason is printed in one line and None is
    returned.
    """
    from mlflow.entities import Metric, Param, RunTag

    try:
        client = open_client(tracking_uri)
        found = client.get_experiment_by_name(experiment)
        experiment_id = (
            client.create_experiment(experiment, artifact_location(tracking_uri))
            if found is None
            else found.experiment_id
        )
        run = client.create_run(experiment_id, run_name=run_name)
        run_id = run.info.run_id
        client.log_batch(
            run_id,
            metrics=[Metric(name, value, 0, 0) for name, value in metrics.items()],
            params=[
                Param(name, without_machine_paths(str(value))) for name, value in params.items()
            ],
            tags=[RunTag(*each) for each in code_tags(Path(__file__).parents[1]).items()],
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

"""Model folders as versions in MLflow's registry, with card, lineage, aliases and signature.

No pickle: MLflow keeps the folder, `bert_core` and `model_pyfunc.py` as files. `mlflow models
serve` runs the model's task from these, and `serving.registry` restores the folder.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

import bert_core
from bert_core.disk import file_sha256
from bert_core.errors import UserError
from serving.registry import (
    FOLDER_NAME,
    METRIC_TAG,
    QUICKLY,
    as_user_error,
    check_location,
    filter_value,
    mlflow_environment,
)
from workflows.runs.mlflow_run import open_client
from workflows.runs.tracker import without_machine_paths

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CONTENT_TAG = "bertline.content_sha256"
RUN_TAG = "bertline.run"
"""On a registered model: the last run that started to make a version of it."""
PARENT_TAG = "encoder.version"
"""The version of the model's encoder; found by the two tags below."""
PARENT_CONTENT_TAG, PARENT_RUN_ID_TAG = "encoder.content_sha256", "encoder.run_id"
IDENTITY_NAMES = ("config.json", "model.safetensors", "tokenizer.json")
PYFUNC = "model_pyfunc"
"""The module of this package that MLflow keeps with each version as its loader module."""
REQUIREMENTS = ("mlflow", "numpy", "pydantic", "safetensors", "tokenizers", "torch")


def register_model_folder(
    folder: Path,
    *,
    name: str,
    run_id: str,
    tracking_uri: str,
    card: str,
    tags: Mapping[str, str],
    metrics: Mapping[str, float],
    aliases: Sequence[str] = ("latest-trained",),
) -> int:
    """Registers a model folder as a version of `name` and points the aliases at it.

    The card becomes the version's description, metrics its tags `metric.NAME`. If `tags` have the
    content hash of an encoder, the encoder's version is added. The same content of the same run is
    registered once, however often this is called. Raises `UserError` if MLflow does not answer or
    refuses.
    """
    content = content_hash(folder)
    entries = {CONTENT_TAG: content, "run_id": run_id} | dict(tags)
    entries |= {f"{METRIC_TAG}{key}": f"{value:.6g}" for key, value in metrics.items()}
    remedy = "repeat the command when MLflow answers; nothing is registered twice"
    problem = as_user_error(f"model {name} not registered", remedy)
    with mlflow_environment(tracking_uri), problem:
        client = open_client(tracking_uri)
        version = _registered_version(client, name, run_id, content)
        if version is None:
            model_id = _log_model(client, folder, name, run_id, content)
            entries = parent_version(client, entries) | entries
            _create_registered_model(client, name)
            created = client.create_model_version(
                name,
                source=f"models:/{model_id}",
                run_id=run_id,
                tags={key: without_machine_paths(value) for key, value in entries.items()},
                description=without_machine_paths(card),
                model_id=model_id,
            )
            version = int(created.version)
        for alias in aliases:
            client.set_registered_model_alias(name, alias, str(version))
    return version


def refuse_unregistrable(name: str, run: str, tracking_uri: str) -> None:
    """Checks before a training that MLflow will accept a version of `name`.

    Creates the registered model if needed, and writes a tag with the run's name to test the
    permission. Raises `UserError` if MLflow does not answer or refuses.
    """
    remedy = "fix MLflow first, or train without registration"
    problem = as_user_error(f"no version of {name} can be registered", remedy)
    with mlflow_environment(tracking_uri, QUICKLY), problem:
        client = open_client(tracking_uri)
        _create_registered_model(client, name)
        client.set_registered_model_tag(name, RUN_TAG, run)


def content_hash(folder: Path) -> str:
    """Computes the identity of a model: sha256 over architecture, weights and tokenizer.

    Raises `UserError` for a folder without one of them.
    """
    total = hashlib.sha256()
    for name in IDENTITY_NAMES:
        path = folder / name
        if not path.is_file():
            raise UserError("not a model folder", str(path), "name a folder that was exported")
        total.update(f"{name} {file_sha256(path)}\n".encode())
    return total.hexdigest()


def parent_version(client: "MlflowClient", tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the tag with the encoder's version, if a version has its content; else {}."""
    content = tags.get(PARENT_CONTENT_TAG)
    found = content and version_of_content(client, content, tags.get(PARENT_RUN_ID_TAG))
    return {PARENT_TAG: f"models:/{found.name}/{found.version}"} if found else {}


def version_of_content(
    client: "MlflowClient", content: str, run_id: str | None
) -> "ModelVersion | None":
    """Returns the oldest version with this content, preferring one of this run."""
    found = client.search_model_versions(f"tags.`{CONTENT_TAG}` = '{content}'")
    found = sorted(
        found, key=lambda version: (version.run_id != run_id, version.creation_timestamp)
    )
    return found[0] if found else None


def _registered_version(client: "MlflowClient", name: str, run_id: str, content: str) -> int | None:
    condition = f"name = {filter_value(name)} and tags.`{CONTENT_TAG}` = '{content}'"
    versions = client.search_model_versions(condition)
    return next((int(version.version) for version in versions if version.run_id == run_id), None)


def _create_registered_model(client: "MlflowClient", name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _log_model(client: "MlflowClient", folder: Path, name: str, run_id: str, content: str) -> str:
    """Logs the folder as a model of the run and returns its id; reuses a complete one."""
    experiment_id = client.get_run(run_id).info.experiment_id
    condition = f"tags.`{CONTENT_TAG}` = '{content}'"
    for found in client.search_logged_models([experiment_id], filter_string=condition):
        if found.source_run_id == run_id:
            if found.status == "READY":
                return found.model_id
            client.delete_logged_model(found.model_id)
    model = client.create_logged_model(
        experiment_id, name=name, source_run_id=run_id, tags={CONTENT_TAG: content}
    )
    check_location(str(model.artifact_location), client.tracking_uri)
    with tempfile.TemporaryDirectory() as temporary:
        client.log_model_artifacts(model.model_id, str(_save(folder, Path(temporary))))
    return client.finalize_logged_model(model.model_id, "READY").model_id


def _save(folder: Path, temporary: Path) -> Path:
    """Writes MLflow's layout of a model, without paths of this machine; returns its folder."""
    import mlflow.pyfunc

    from workflows.versions.model_pyfunc import signature_and_example

    own_code = temporary / "bert_core"
    package = Path(bert_core.__path__[0])
    shutil.copytree(package, own_code, ignore=shutil.ignore_patterns("__pycache__"))
    saved = temporary / "saved"
    signature, input_example = signature_and_example(folder)
    mlflow.pyfunc.save_model(
        saved,
        loader_module=PYFUNC,
        code_paths=[str(own_code), str(Path(__file__).with_name(f"{PYFUNC}.py"))],
        pip_requirements=[f"{name}=={_public_version(name)}" for name in REQUIREMENTS],
        signature=signature,
        input_example=input_example,
    )
    shutil.copytree(folder, saved / "artifacts" / FOLDER_NAME)
    described = yaml.safe_load((saved / "MLmodel").read_text())
    described["flavors"]["python_function"]["data"] = f"artifacts/{FOLDER_NAME}"
    described["model_size_bytes"] = sum(
        path.stat().st_size for path in saved.rglob("*") if path.is_file()
    )
    (saved / "MLmodel").write_text(yaml.safe_dump(described, sort_keys=False))
    return saved


def _public_version(package: str) -> str:
    return metadata.version(package).partition("+")[0]  # 2.13.0+cpu is not on every package index

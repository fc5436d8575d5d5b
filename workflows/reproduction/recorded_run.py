"""A finished run as it was recorded, to be made again: a run folder or MLflow, read alike.

In: a run's name under a storage folder, or its id at MLflow. Out: its settings, what it was made
of, and every figure of every step.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.errors import UserError, nearest
from bert_core.strict_json import parse_json, read_bounded, read_json_object
from bert_core.strict_yaml import parse_yaml
from bert_core.text_encoding import decode_text
from bert_core.training.checkpoint import CheckpointInfo, newest_checkpoint, read_checkpoint
from workflows.reproduction.code_files import CodeState, parse_code, read_code
from workflows.reproduction.run_origin import (
    CODE,
    DATA,
    OUTCOME,
    SETTINGS,
    SETTINGS_TAG,
    outcome_of,
)
from workflows.run_folder import RunFolder
from workflows.tracking.journal import read_records
from workflows.tracking.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    read_json,
)
from workflows.versions.registry_run import FetchedRun, fetch_run

Values = Mapping[tuple[int, str], float]
"""The figures of a run by step and name."""
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RecordedRun:
    """What is known of a run; what is not recorded is empty.

    `settings` are those of settings.yaml; `places` are the settings that it leaves out, data and
    encoder as they were typed, which a run folder alone knows. `data` is data.json, `code` the
    states that the run was started under, `outcome` what `write_outcome` wrote.
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
        """The hash of what it learned from."""
        return self.tags.get("data.sha256")


def read_recorded_run(run: str, storage: Path, tracking_uri: str) -> RecordedRun:
    """The run of this name in the storage, or of this id at MLflow.

    A folder of the storage knows more, so it is read where it is that of the id. Raises `UserError`
    for a run that is not there or has not finished.
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
        raise UserError("no settings.yaml", str(folder.path), "the run cannot be made again")
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
    """Settings with the paths below the storage as they are, be it moved since the run began."""
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
    raise UserError(what, str(folder.path), "let it come to its end first")


def _of_mlflow(fetched: FetchedRun) -> RecordedRun:
    run, texts = fetched.run, fetched.texts
    if run.status != "FINISHED":
        raise UserError(f"run {run.name} has not finished", run.status, "let it come to its end")
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
    """The settings of settings.yaml; raises `UserError` where the file is not the recorded one."""
    recorded = tags.get(SETTINGS_TAG)
    if recorded is not None and hashlib.sha256(text.encode()).hexdigest() != recorded:
        what = "settings.yaml is not what it was when the run began"
        raise UserError(what, name, "put the file back, its sha256 is at MLflow")
    return parse_yaml(text, f"settings.yaml of {name}")


def journal_values(folder: RunFolder) -> Values:
    """The figures that a run has written down, by step and name."""
    return {
        (record.step, name): value
        for record in read_records(folder.path / JOURNAL_NAME)
        for name, value in record.metrics.items()
    }

"""The settings of making a run again, and those of the run that is to come out of it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from bert_core.errors import UserError
from workflows.pretraining.settings import PretrainSettings
from workflows.reproduction.recorded_run import RecordedRun
from workflows.settings import CommandLineSettings, default_storage, validated
from workflows.tracking.tracker import without_machine_paths
from workflows.training.run_settings import RunSettings


class ReproduceSettings(CommandLineSettings):
    """Makes a finished run again from its recorded settings and compares all its figures.

    Refuses where data, encoder or the code of training are not what they were, and says how they
    differ. The same command goes on after any death.

    Exit codes: 0 the same to the bit, or within --tolerance; 3 other figures; 2 something is wrong
    with the input, or data or code differ; 130 stopped.
    """

    run: CliPositionalArg[str] = Field(
        description="name of a finished run under --storage, or the id of a run at MLflow"
    )
    name: str | None = Field(
        default=None,
        pattern=r"^\w[\w.\-]*$",
        description="name of the run that is made; by default RUN-again",
    )
    data: str | None = Field(
        default=None,
        description="the data of fine-tuning, where they lie now; by default where they were",
    )
    model: str | None = Field(
        default=None,
        description="the encoder of fine-tuning: a model folder, models:/NAME/3, or the name of a"
        " run; by default what it was",
    )
    shards: Path | None = Field(
        default=None,
        description="the token shards of pre-training, where they lie now; by default where they"
        " were, or prepared from the same text",
    )
    despite: Literal["code"] | None = Field(
        default=None, description="go on although the code differs"
    )
    tolerance: float = Field(
        default=0.0,
        ge=0,
        description="largest difference of a figure that counts as none; 0: to the bit, the weights"
        " too",
    )
    num_workers: int | None = Field(
        default=None, ge=1, description="training processes, if not as many as there were"
    )
    threads_per_worker: int | None = Field(
        default=None, ge=1, description="torch threads of each, if not as many as there were"
    )
    use_gpu: bool | None = Field(
        default=None, description="one GPU per worker or none, if not as it was"
    )
    storage: str = Field(
        default_factory=default_storage,
        description="folder or address of runs and of the MLflow store; by default ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )
    fresh: bool = Field(
        default=False, description="set an earlier attempt of this name aside and start over"
    )


def settings_again(recorded: RecordedRun, wanted: ReproduceSettings) -> RunSettings:
    """The settings of the run once more, on as many workers and threads as it ended with.

    It is registered nowhere. Raises `UserError` where its data or encoder lie is not known.
    """
    name = wanted.name or f"{recorded.name}-again"
    if name == recorded.name:
        raise UserError("that is the run itself", f"--name {name}", "give another name")
    tracking = {"uri": wanted.tracking_uri, "register_as": None}
    values = recorded.settings | {
        "name": name,
        "storage": wanted.storage,
        "fresh": wanted.fresh,
        "tracking": recorded.settings["tracking"] | tracking,
        "cluster": recorded.settings["cluster"] | _cluster(recorded, wanted),
    }
    if "task" not in values:
        values["shards"] = wanted.shards or _shards(recorded)
        return validated(PretrainSettings, values, "settings.yaml")
    from workflows.finetuning.settings import settings_class

    values |= {"data": wanted.data or _data(recorded), "model": wanted.model or _encoder(recorded)}
    return validated(settings_class(values["task"], values["approach"]), values, "settings.yaml")


def _cluster(recorded: RecordedRun, wanted: ReproduceSettings) -> dict[str, Any]:
    outcome = recorded.outcome
    was = {
        "num_workers": outcome.get("world_size"),
        "threads_per_worker": outcome.get("num_threads"),
        "use_gpu": outcome["device"] == "cuda" if "device" in outcome else None,
    }
    given = {name: getattr(wanted, name) for name in was}
    return {
        name: given[name] if given[name] is not None else value
        for name, value in was.items()
        if given[name] is not None or value is not None
    }


def _data(recorded: RecordedRun) -> str:
    data = recorded.places.get("data", "")
    if "://" in data or (data and Path(data).expanduser().exists()):
        return data
    name = recorded.data.get("source")
    raise _unknown_place(recorded, f"the data{f' {name}' if name else ''}", "--data")


def _encoder(recorded: RecordedRun) -> str:
    """The encoder as it was typed, unless that was an alias, which may have moved since."""
    typed, version = recorded.places.get("model", ""), recorded.tags.get("encoder.version")
    is_folder = bool(typed) and Path(typed).expanduser().is_dir()
    if is_folder or (typed and version is None and "/" not in typed):
        return typed
    if version or typed.startswith("models:/"):
        return version or typed
    name = recorded.tags.get("encoder.name", "")
    raise _unknown_place(recorded, f"the encoder{f' {name}' if name else ''}", "--model")


def _shards(recorded: RecordedRun) -> Path | None:
    """The folder of the shards; None where they were prepared from the text of the settings."""
    shards = recorded.places.get("shards")
    if shards is not None and Path(shards).exists():
        return Path(shards)
    if recorded.places and shards is None:
        return None
    text = [without_machine_paths(each) for each in recorded.settings["text"]]
    if shards is None and recorded.data.get("prepared_with", {}).get("text") == text:
        return None
    raise _unknown_place(recorded, "the token shards", "--shards")


def _unknown_place(recorded: RecordedRun, what: str, option: str) -> UserError:
    return UserError(f"nobody knows where {what} lie", recorded.name, f"give {option}")

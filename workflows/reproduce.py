"""Reproduces a finished run and compares it: `python workflows/reproduce.py RUN --help`.

Trains with the recorded settings and prints both runs' figures. Refuses if data, encoder or code
have changed. After an interruption the same command continues.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from bert_core.command_help import Example, Guide
from bert_core.errors import UserError
from workflows.command import REFUSED, run_command
from workflows.runs.folder import RunFolder
from workflows.runs.storage import Storage, open_storage
from workflows.runs.tracker import without_machine_paths
from workflows.settings import StoreSettings, default_storage, parse_command_line, validated

if TYPE_CHECKING:
    from workflows.finetuning.settings import TaskRunSettings
    from workflows.pretraining.settings import PretrainSettings
    from workflows.reproduction.comparison import Comparison, Finding
    from workflows.reproduction.recorded_run import RecordedRun
    from workflows.training.run_settings import RunSettings

DIFFERENT = REFUSED
"""Exit code for different figures."""


class ReproduceSettings(StoreSettings):
    """Reproduces a finished run from its recorded settings and compares all its figures.

    Refuses if data, encoder or the training code have changed, and says how they differ. After an
    interruption the same command continues.

    Exit codes: 0 bit-equal, or within --tolerance; 3 other figures; 2 the input is wrong, or data
    or code differ; 130 stopped.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("repeat a run and compare every figure", "mrpc-1a2b3c4d"),
            Example("with data that have moved", "mrpc-1a2b3c4d --data new/place/MRPC"),
            Example(
                "with other code, and figures that may differ a little",
                "mrpc-1a2b3c4d --despite code --tolerance 0.001",
            ),
        ),
        common=(
            "run",
            "name",
            "data",
            "model",
            "shards",
            "despite",
            "tolerance",
            "num_workers",
            "storage",
            "fresh",
        ),
        positional="run",
    )

    run: CliPositionalArg[str] = Field(
        description="name of a finished run in --storage, or the id of a run at MLflow"
    )
    name: str | None = Field(
        default=None,
        pattern=r"^\w[\w.\-]*$",
        description="name of the new run; by default RUN-again",
    )
    data: str | None = Field(
        default=None,
        description="path of the fine-tuning data, if it has moved",
    )
    model: str | None = Field(
        default=None,
        description="encoder, if it has moved: a model folder, models:/NAME/3, or a run name",
    )
    shards: Path | None = Field(
        default=None,
        description="path of the token shards, if they have moved; by default prepared again if"
        " needed",
    )
    despite: Literal["code"] | None = Field(
        default=None, description="continue although the code differs"
    )
    tolerance: float = Field(
        default=0.0,
        ge=0,
        description="largest accepted difference of a figure; 0: bit-equal weights",
    )
    num_workers: int | None = Field(
        default=None, ge=1, description="training processes; by default the recorded number"
    )
    threads_per_worker: int | None = Field(
        default=None, ge=1, description="torch threads of each; by default the recorded number"
    )
    use_gpu: bool | None = Field(
        default=None, description="one GPU per worker or none; by default as recorded"
    )
    storage: str = Field(
        default_factory=default_storage,
        description="folder or address of runs and the MLflow store",
    )
    fresh: bool = Field(
        default=False, description="rename an earlier attempt of this name and start over"
    )


@dataclass(frozen=True)
class Attempt:
    """A prepared reproduction: the comparison of its inputs, and the function that starts it.

    `start` returns None if the run was stopped.
    """

    findings: "list[Finding]"
    start: Callable[[], RunFolder | None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: see `run_command`, and 3 for other figures."""
    given = sys.argv[1:] if arguments is None else arguments
    within: list[bool] = []

    def action() -> bool:
        settings = parse_command_line(ReproduceSettings, given)
        comparison = reproduce(settings)
        if comparison is not None:
            within.append(comparison.is_within(settings.tolerance))
        return comparison is not None

    code = run_command(action)
    return DIFFERENT if code == 0 and not all(within) else code


def reproduce(settings: ReproduceSettings) -> "Comparison | None":
    """Reproduces the run, prints the table and returns it; None if the run was stopped.

    Raises `UserError` for wrong input, and if the inputs of the run have changed.
    """
    from bert_core.disk import file_sha256
    from bert_core.model_folder import WEIGHTS
    from workflows.reproduction.comparison import Comparison, table_lines, verdict_line
    from workflows.reproduction.recorded_run import journal_values, read_recorded_run

    storage = open_storage(settings.storage)
    recorded = read_recorded_run(settings.run, storage.folder, settings.mlflow_uri)
    attempt = attempt_at(recorded, settings, storage)
    print(f"recorded {recorded.name}, {len(recorded.values):,} figures")
    print("\n".join(map(str, attempt.findings)), flush=True)
    refuse_other_inputs(recorded, settings, attempt.findings)
    folder = attempt.start()
    if folder is None:
        return None
    comparison = Comparison(
        recorded.values,
        journal_values(folder),
        recorded.outcome.get("weights_sha256"),
        file_sha256(folder.model / WEIGHTS),
    )
    verdict = verdict_line(comparison, settings.tolerance)
    print("\n".join(["", *table_lines(comparison), "", verdict]))
    return comparison


def attempt_at(recorded: "RecordedRun", settings: ReproduceSettings, storage: Storage) -> Attempt:
    """Compares all inputs of the run, and prepares its start."""
    from workflows.finetuning.settings import TaskRunSettings
    from workflows.pretraining.settings import PretrainSettings
    from workflows.reproduction.comparison import code_finding, hardware_findings, package_findings
    from workflows.reproduction.run_origin import CodeState

    again = settings_again(recorded, settings)
    if isinstance(again, TaskRunSettings):
        attempt = finetuning_attempt(recorded, again, storage)
    else:
        assert isinstance(again, PretrainSettings)
        attempt = pretraining_attempt(recorded, again, storage)
    others = [
        code_finding(recorded, CodeState.now()),
        *package_findings(recorded),
        *hardware_findings(recorded, again.cluster),
    ]
    return Attempt([*attempt.findings, *others], attempt.start)


def finetuning_attempt(
    recorded: "RecordedRun", again: "TaskRunSettings", storage: Storage
) -> Attempt:
    """Prepares fine-tuning, or a tagger over features."""
    from workflows.finetune import announce, opened_job, read_inputs
    from workflows.finetuning.results import write_results
    from workflows.finetuning.settings import FeatureSettings
    from workflows.reproduction.comparison import data_finding, encoder_finding
    from workflows.reproduction.run_origin import describe_task_data
    from workflows.training.job import train_and_register

    encoder, data = read_inputs(again, storage)

    def start() -> RunFolder | None:
        with opened_job(again, storage, inputs=(encoder, data)) as job:
            announce(job)
            if isinstance(again, FeatureSettings) and job.features.exists():
                print(f"features reused, not computed again: {job.features}")
            if job.folder.summary.exists():
                print(job.folder.finished_summary())
                return job.folder
            return job.folder if train_and_register([job], write_results) else None

    now = describe_task_data(again.task, again.data, data, encoder.tokenizer)
    findings = [data_finding(recorded, now), encoder_finding(recorded, encoder.sha256)]
    if data.teacher is not None:
        findings.append(encoder_finding(recorded, data.teacher.sha256, "teacher"))
    return Attempt(findings, start)


def pretraining_attempt(
    recorded: "RecordedRun", again: "PretrainSettings", storage: Storage
) -> Attempt:
    """Prepares pre-training; prepares the text unless its shards exist."""
    from bert_core.text.shards import open_shards
    from workflows.pretrain import prepared_text, pretrain
    from workflows.pretraining.job import find_start, find_teacher
    from workflows.reproduction.comparison import data_finding, encoder_finding
    from workflows.reproduction.run_origin import describe_shards

    start = find_start(again, storage)
    tokenizer = None if start is None else start.encoder.path
    shards = again.shards or prepared_text(again, storage.folder, tokenizer)
    findings = [data_finding(recorded, describe_shards(shards))]
    if start is not None:
        findings.append(encoder_finding(recorded, start.encoder.sha256))
    teacher = find_teacher(again, storage, open_shards(shards, "train"))
    if teacher is not None:
        findings.append(encoder_finding(recorded, teacher.sha256, "teacher"))
    return Attempt(findings, lambda: pretrain(again))


def settings_again(recorded: "RecordedRun", wanted: ReproduceSettings) -> "RunSettings":
    """Returns the run's settings, with the workers and threads that it ended with.

    The new run is not registered. Raises `UserError` if the data or encoder cannot be located.
    """
    name = wanted.name or f"{recorded.name}-again"
    if name == recorded.name:
        raise UserError("this name is the recorded run's", f"--name {name}", "pass another name")
    tracking = {"uri": wanted.tracking_uri, "register_as": None}
    values = recorded.settings | {
        "name": name,
        "storage": wanted.storage,
        "fresh": wanted.fresh,
        "tracking": recorded.settings["tracking"] | tracking,
        "cluster": recorded.settings["cluster"] | _cluster(recorded, wanted),
    }
    if "task" not in values:
        from workflows.pretraining.settings import PretrainSettings

        values["shards"] = wanted.shards or _shards(recorded)
        if values["shards"] is not None:
            values.pop("text", None)  # which they were prepared from, or which was never read
        if values.get("start_from") is not None:
            values["start_from"] = wanted.model or _encoder(recorded, "start_from")
        values |= {name: _kept_place(recorded, name) for name in ("replay", "decay_from")}
        values |= _taught(recorded)
        return validated(PretrainSettings, values, "settings.yaml")
    from workflows.finetuning.settings import settings_class

    values |= _data_again(recorded, wanted.data)
    values |= {"model": wanted.model or _encoder(recorded)}
    values |= _taught(recorded)
    return validated(settings_class(values["task"], values["approach"]), values, "settings.yaml")


def _cluster(recorded: "RecordedRun", wanted: ReproduceSettings) -> dict[str, Any]:
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


def _data_again(recorded: "RecordedRun", wanted: str | None) -> dict[str, Any]:
    """Where the data are: those wanted, or as the run had them, with files of single splits."""
    places = {"exclude": _kept_place(recorded, "exclude")}
    if wanted:
        return places | {"data": wanted}
    places |= {name: _kept_place(recorded, name) for name in ("train", "dev", "test")}
    has_all = places["train"] is not None and places["dev"] is not None
    return places | {"data": "" if has_all else _data(recorded)}


def _data(recorded: "RecordedRun") -> str:
    data = recorded.places.get("data", "")
    if "://" in data or (data and Path(data).expanduser().exists()):
        return data
    name = recorded.data.get("source")
    raise _unknown_place(recorded, f"the data{f' {name}' if name else ''}", "--data")


def _kept_place(recorded: "RecordedRun", name: str) -> str | None:
    """Returns the file or folder that a setting named, None where the run had none."""
    place = recorded.places.get(name)
    had_one = place is not None or f"{name}.sha256" in recorded.tags
    if had_one and (place is None or not ("://" in place or Path(place).expanduser().exists())):
        what, remedy = f"cannot locate what --{name} named", "put it back where the run read it"
        raise UserError(what, recorded.name, remedy)
    return place


def _encoder(recorded: "RecordedRun", setting: str = "model") -> str:
    """Returns the encoder as typed; its version instead of an alias, which may have moved."""
    typed, version = recorded.places.get(setting) or "", recorded.tags.get("encoder.version")
    is_folder = bool(typed) and Path(typed).expanduser().is_dir()
    if is_folder or (typed and version is None and "/" not in typed):
        return typed
    if version or typed.startswith("models:/"):
        return version or typed
    name = recorded.tags.get("encoder.name", "")
    raise _unknown_place(recorded, f"the encoder{f' {name}' if name else ''}", "--model")


def _taught(recorded: "RecordedRun") -> dict[str, Any]:
    """Returns teacher and unlabelled files as typed; nothing where the run had no teacher."""
    given = {name: recorded.places.get(name) for name in ("teacher", "unlabelled")}
    if given["teacher"] is None and "teacher.sha256" in recorded.tags:
        remedy = "train it again, with --teacher"
        raise UserError("cannot locate the teacher", recorded.name, remedy)
    return {name: place for name, place in given.items() if place}


def _shards(recorded: "RecordedRun") -> Path | None:
    """Returns the folder of the shards; None if they are prepared from the text of the settings."""
    shards = recorded.places.get("shards")
    if shards is not None and Path(shards).exists():
        return Path(shards)
    if recorded.places and shards is None:
        return None
    text = [without_machine_paths(source) for source in recorded.settings["text"]]
    if shards is None and recorded.data.get("prepared_with", {}).get("text") == text:
        return None
    raise _unknown_place(recorded, "the token shards", "--shards")


def _unknown_place(recorded: "RecordedRun", what: str, option: str) -> UserError:
    return UserError(f"cannot locate {what}", recorded.name, f"pass {option}")


def refuse_other_inputs(
    recorded: "RecordedRun", settings: ReproduceSettings, findings: "Sequence[Finding]"
) -> None:
    """Raises `UserError` for the first finding that prevents a reproduction."""
    from workflows.reproduction.comparison import NOT_RECORDED

    for finding in findings:
        if finding.refuses and finding.what == settings.despite:
            print("continuing despite that")
        elif finding.refuses:
            name = finding.what
            option = "--data" if "task" in recorded.settings else "--shards"
            remedy = {
                "data": f"pass the original data with {option}",
                "encoder": "pass the original encoder with --model",
                "code": "check out that code, or pass --despite code to run this one",
            }[name]
            if finding.text.startswith(NOT_RECORDED):
                remedy = "name another run: the inputs of this one are not recorded"
            raise UserError(f"{name} {finding.text}", recorded.name, remedy)


if __name__ == "__main__":
    sys.exit(main())

"""Makes a finished run again and compares: `python workflows/reproduce.py RUN --help`.

A run's name, or its id at MLflow, goes in; a run of the same settings comes out, and a table of
both. It is refused where data, encoder or code are not what they were. The same command goes on.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from bert_core.errors import UserError
from workflows.command import REFUSED, run_command
from workflows.run_folder import RunFolder
from workflows.settings import CommandLineSettings, default_storage, parse_command_line, validated
from workflows.storage import Storage, open_storage
from workflows.tracking.tracker import default_tracking_uri, without_machine_paths

if TYPE_CHECKING:
    from workflows.finetuning.settings import TaskRunSettings
    from workflows.pretraining.settings import PretrainSettings
    from workflows.reproduction.comparison import Comparison, Finding
    from workflows.reproduction.recorded_run import RecordedRun
    from workflows.training.run_settings import RunSettings

DIFFERENT = REFUSED
"""Exit code where the figures are other ones."""


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


@dataclass(frozen=True)
class Attempt:
    """A run that is about to be made again: what was found of its data, and what starts it.

    `start` gives None when it was told to stop.
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
    """Makes the run again, prints the table and returns it; None when it was told to stop.

    Raises `UserError` for what the user can mend, and where what the run is made of differs.
    """
    from bert_core.disk import file_sha256
    from bert_core.model_folder import WEIGHTS
    from workflows.reproduction.comparison import Comparison, table_lines, verdict_line
    from workflows.reproduction.recorded_run import journal_values, read_recorded_run

    storage = open_storage(settings.storage)
    tracking_uri = settings.tracking_uri or default_tracking_uri(storage.folder)
    recorded = read_recorded_run(settings.run, storage.folder, tracking_uri)
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
    """What is found of everything that the run was made of, and what starts it once more."""
    from workflows.finetuning.settings import TaskRunSettings
    from workflows.pretraining.settings import PretrainSettings
    from workflows.reproduction.code_files import CodeState
    from workflows.reproduction.comparison import code_finding, hardware_findings, package_findings

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
    """Of fine-tuning, or of a tagger over features."""
    from workflows.finetune import announce, opened_job, read_inputs
    from workflows.finetuning.settings import FeatureSettings
    from workflows.reproduction.comparison import data_finding, encoder_finding
    from workflows.reproduction.run_origin import describe_task_data
    from workflows.training.job import train_and_register

    encoder, data = read_inputs(again, storage)

    def start() -> RunFolder | None:
        with opened_job(again, storage, inputs=(encoder, data)) as job:
            announce(job)
            if isinstance(again, FeatureSettings) and job.features.exists():
                print(f"states   as they are kept, not computed again: {job.features}")
            if job.folder.summary.exists():
                print(job.folder.finished_summary())
                return job.folder
            return job.folder if train_and_register([job]) else None

    now = describe_task_data(again.task, again.data, data, encoder.tokenizer)
    findings = [data_finding(recorded, now), encoder_finding(recorded, encoder.sha256)]
    return Attempt(findings, start)


def pretraining_attempt(
    recorded: "RecordedRun", again: "PretrainSettings", storage: Storage
) -> Attempt:
    """Of pre-training; text is prepared here, unless its shards are there."""
    from workflows.pretrain import pretrain
    from workflows.pretraining.setup import prepared_text
    from workflows.reproduction.comparison import data_finding
    from workflows.reproduction.run_origin import describe_shards

    shards = again.shards or prepared_text(again, storage.folder)
    finding = data_finding(recorded, describe_shards(shards))
    return Attempt([finding], lambda: pretrain(again))


def settings_again(recorded: "RecordedRun", wanted: ReproduceSettings) -> "RunSettings":
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
        from workflows.pretraining.settings import PretrainSettings

        values["shards"] = wanted.shards or _shards(recorded)
        return validated(PretrainSettings, values, "settings.yaml")
    from workflows.finetuning.settings import settings_class

    values |= {"data": wanted.data or _data(recorded), "model": wanted.model or _encoder(recorded)}
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


def _data(recorded: "RecordedRun") -> str:
    data = recorded.places.get("data", "")
    if "://" in data or (data and Path(data).expanduser().exists()):
        return data
    name = recorded.data.get("source")
    raise _unknown_place(recorded, f"the data{f' {name}' if name else ''}", "--data")


def _encoder(recorded: "RecordedRun") -> str:
    """The encoder as it was typed, unless that was an alias, which may have moved since."""
    typed, version = recorded.places.get("model", ""), recorded.tags.get("encoder.version")
    is_folder = bool(typed) and Path(typed).expanduser().is_dir()
    if is_folder or (typed and version is None and "/" not in typed):
        return typed
    if version or typed.startswith("models:/"):
        return version or typed
    name = recorded.tags.get("encoder.name", "")
    raise _unknown_place(recorded, f"the encoder{f' {name}' if name else ''}", "--model")


def _shards(recorded: "RecordedRun") -> Path | None:
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


def _unknown_place(recorded: "RecordedRun", what: str, option: str) -> UserError:
    return UserError(f"nobody knows where {what} lie", recorded.name, f"give {option}")


def refuse_other_inputs(
    recorded: "RecordedRun", settings: ReproduceSettings, findings: "Sequence[Finding]"
) -> None:
    """Raises `UserError` for the first finding with which the run cannot come out again."""
    from workflows.reproduction.comparison import NOT_RECORDED

    for finding in findings:
        if finding.refuses and finding.what == settings.despite:
            print("going on despite that")
        elif finding.refuses:
            name = finding.what
            option = "--data" if "task" in recorded.settings else "--shards"
            remedy = {
                "data": f"give the data that it learned from with {option}",
                "encoder": "give the encoder that it started from with --model",
                "code": "check that code out, or give --despite code to see what this one gives",
            }[name]
            if finding.text.startswith(NOT_RECORDED):
                remedy = "name another run: nothing shows what this one learned from"
            raise UserError(f"{name} {finding.text}", recorded.name, remedy)


if __name__ == "__main__":
    sys.exit(main())

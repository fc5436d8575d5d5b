"""Makes a finished run again and compares: `python workflows/reproduce.py RUN --help`.

A run's name, or its id at MLflow, goes in; a run of the same settings comes out, and a table of
both. It is refused where data, encoder or code are not what they were. The same command goes on.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bert_core.errors import UserError
from workflows.command import REFUSED, run_command
from workflows.reproduction.settings import ReproduceSettings, settings_again
from workflows.run_folder import RunFolder
from workflows.settings import parse_command_line
from workflows.storage import Storage, open_storage
from workflows.tracking.tracker import default_tracking_uri

if TYPE_CHECKING:
    from workflows.finetuning.settings import TaskRunSettings
    from workflows.pretraining.settings import PretrainSettings
    from workflows.reproduction.differences import Finding
    from workflows.reproduction.recorded_run import RecordedRun
    from workflows.reproduction.table import Comparison

DIFFERENT = REFUSED
"""Exit code where the figures are other ones."""


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
    from workflows.reproduction.recorded_run import journal_values, read_recorded_run
    from workflows.reproduction.table import Comparison, table_lines, verdict_line

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
    from workflows.reproduction.differences import code_finding, hardware_findings, package_findings

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
    from workflows.reproduction.data_description import describe_task_data
    from workflows.reproduction.differences import data_finding, encoder_finding
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
    from workflows.reproduction.data_description import describe_shards
    from workflows.reproduction.differences import data_finding

    shards = again.shards or prepared_text(again, storage.folder)
    finding = data_finding(recorded, describe_shards(shards))
    return Attempt([finding], lambda: pretrain(again))


def refuse_other_inputs(
    recorded: "RecordedRun", settings: ReproduceSettings, findings: "Sequence[Finding]"
) -> None:
    """Raises `UserError` for the first finding with which the run cannot come out again."""
    from workflows.reproduction.differences import NOT_RECORDED

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

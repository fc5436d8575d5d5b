"""Tables 5, 6 and 8 at any scale: `python workflows/ablate.py --study objective`; see `--help`.

Settings of pre-training and a study go in; its variants are pre-trained, each is fine-tuned on some
tasks, and a report says what they are worth beside the paper's figures. The same command goes on
after any death; a finished ablation prints its summary.
"""

import sys
from collections.abc import Sequence

from bert_core.errors import UserError
from workflows.ablations.ablation import Ablation, opened_ablation
from workflows.ablations.settings import AblateSettings, parse
from workflows.command import run_command
from workflows.run_folder import WRITER_LOCK_NAME, write_atomically
from workflows.storage import open_storage
from workflows.tracking.tracker import ARTIFACTS_NAME, TrackingSummary


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (see `run_command`)."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: ablate(parse(given)))


def ablate(settings: AblateSettings) -> bool:
    """Trains what is missing of an ablation and writes its report; False when told to stop.

    Raises `UserError` for what the user can mend.
    """
    storage = open_storage(settings.storage)
    print(f"storage  {storage.folder}", flush=True)
    with opened_ablation(settings, storage) as ablation:
        announce(ablation)
        if ablation.folder.summary.exists():
            print(ablation.folder.finished_summary())
            return True
        return train(ablation)


def train(ablation: Ablation) -> bool:
    """Trains what is left, and reports after each stage."""
    from workflows.ablations.report import summary_lines, write_ablation_report
    from workflows.ablations.run import AblationRun, mean_figures, note_figures, tracked_ablation
    from workflows.sweeps.tracker import SweepTracker
    from workflows.sweeps.training import TrialPlace, join_cluster_for

    place = TrialPlace.of(ablation.settings.cluster, ablation.settings.gpus_per_trial)
    shared = ablation.folder.path if ablation.storage.uri is None else None
    at_once = join_cluster_for(place, ablation.settings.at_once, shared=shared)
    artifacts = ablation.folder.path / ARTIFACTS_NAME
    (ablation.folder.path / WRITER_LOCK_NAME).touch()  # from here on it has begun
    tracker = SweepTracker(ablation.folder.path, tracked_ablation(ablation))
    status, patience_seconds = "FAILED", 5.0

    def report() -> list[str]:
        return summary_lines(write_ablation_report(ablation.outcome(at_once), artifacts), artifacts)

    try:
        complete = AblationRun(ablation, tracker, place, at_once, look=report).train()
        status = "KILLED"
        lines = report()
        if complete:
            note_figures(ablation, mean_figures(ablation))
            status, patience_seconds = "FAILED" if ablation.failures() else "FINISHED", 120.0
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking = tracker.finish(status, patience_seconds)
    if not complete:
        print("stopped; the same command goes on")
        return False
    conclude(ablation, lines, tracking)
    return True


def announce(ablation: Ablation) -> None:
    """Prints what is compared, on what, and where it will lie."""
    settings, num_tasks = ablation.settings, len(ablation.tasks)
    lines = [f"ablation {ablation.folder.name}", f"folder   {ablation.folder.path}"]
    for each in ablation.variants:
        state = "is pre-trained" if each.is_finished else "is to be pre-trained"
        lines.append(f"variant  {each.variant.title:<16} {each.name} {state}")
    lines.append(f"tasks    {', '.join(each.key for each in ablation.tasks)}")
    num_trials = len(ablation.variants) * num_tasks * settings.seeds
    lines.append(
        f"runs     {len(ablation.left())} of {len(ablation.variants)} pre-trainings left, then "
        f"{num_trials} fine-tunings of {settings.seeds} seeds"
    )
    print("\n".join(lines), flush=True)


def conclude(ablation: Ablation, lines: list[str], tracking: TrackingSummary) -> None:
    """Prints the summary, and keeps it unless something is still to do.

    Raises `UserError` where no pre-training has come to its end.
    """
    from workflows.versions.finished_run import open_command

    failures = ablation.failures()
    if not any(each.is_finished for each in ablation.variants):
        remedy = "mend it; the same command tries them again"
        raise UserError("no pre-training has finished", failures[0], remedy)
    problem = tracking.error
    if problem or tracking.unsent_records:
        lines.append(f"MLflow       {tracking.unsent_records:,} records not sent: {problem}")
        lines.append("             the same command sends them")
    else:
        lines.append(f"MLflow       {open_command(ablation.tracking_uri)}")
    if failures:
        lines.append("again        the same command tries what has failed once more")
    text = "\n".join(lines)
    if not (problem or tracking.unsent_records or failures):
        write_atomically(ablation.folder.summary, text + "\n")
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The end of a sweep: its report, the winner's model folder as a version, the lines of its summary.

In: an open sweep whose trials have come to their ends. Out: `artifacts/`, a version, `summary.txt`.
"""

from bert_core.errors import UserError
from workflows.run_folder import write_atomically
from workflows.sweeps.planned_trial import PlannedTrial
from workflows.sweeps.report import summary_lines, write_sweep_report
from workflows.sweeps.sweep import Sweep
from workflows.sweeps.tracker import SweepTracker
from workflows.tracking.tracker import ARTIFACTS_NAME, TrackingSummary
from workflows.training.job import JobResults, tracked_run, tracking_uri
from workflows.versions.finished_run import lineage_tags, open_command
from workflows.versions.registration import register_model_folder

ALIASES = ("challenger", "latest-trained")
"""What the registered winner is called: what `promote` measures against the champion."""


def write_report(sweep: Sweep, at_once: int) -> list[str]:
    """Writes the report of all trials so far, for MLflow and to open from the disk.

    Returns the lines of the summary.
    """
    folder = sweep.folder.path / ARTIFACTS_NAME
    return summary_lines(write_sweep_report(sweep.outcome(at_once), folder), folder)


def export_winner(sweep: Sweep, tracker: SweepTracker) -> JobResults | None:
    """Writes the best trial's model folder and card, and lets its run at MLflow have its pictures.

    None where no trial has finished.
    """
    best = sweep.best()
    if best is None:
        return None
    results = best.job.write_results()
    tracker.begin(best.job.folder.path, tracked_run(best.job))
    tracker.end(best.job.folder.path, "FINISHED")
    return results


def conclude(
    sweep: Sweep,
    results: JobResults | None,
    lines: list[str],
    tracker: SweepTracker,
    tracking: TrackingSummary,
) -> None:
    """Registers the winner, prints the summary, and keeps it unless something is still to do.

    Raises `UserError` where every trial has failed.
    """
    best = sweep.best()
    failed = [each for each in sweep.trials if each.failure]
    if best is None or results is None:
        reasons = sorted({each.failure or "" for each in failed})
        remedy = "mend it; the same command tries them again"
        raise UserError("no trial has finished", reasons[0] if reasons else "no trials", remedy)
    problem, registered = tracking.error, ""
    if not problem:
        registered, problem = _register(best, results, tracker)
    lines = [*lines, f"model        {best.job.folder.model}"]
    if registered:
        lines.append(f"registered   {registered}, alias {ALIASES[0]}")
    if problem or tracking.unsent_records:
        lines.append(f"MLflow       {tracking.unsent_records:,} records not sent: {problem}")
        lines.append("             the same command sends them and registers the model")
    else:
        lines.append(f"MLflow       {open_command(tracking_uri(best.job))}")
    text = "\n".join(lines)
    if not problem and not tracking.unsent_records and not failed:
        write_atomically(sweep.folder.summary, text + "\n")
    print(text, flush=True)


def _register(
    best: PlannedTrial, results: JobResults, tracker: SweepTracker
) -> tuple[str, str | None]:
    """The winner's address in the registry, or why it is not there."""
    folder, run_id = best.job.folder, tracker.run_id_of(best.job.folder.path)
    name = best.job.settings.tracking.register_as or best.job.settings.task
    if run_id is None:
        return "", "the winner's run is not at MLflow"
    try:
        version = register_model_folder(
            folder.model,
            name=name,
            run_id=run_id,
            tracking_uri=tracking_uri(best.job),
            card=results.card,
            tags=lineage_tags(folder),
            metrics=results.figures,
            aliases=ALIASES,
        )
    except UserError as error:
        return "", str(error)
    return f"models:/{name}/{version}", None

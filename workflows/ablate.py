"""Tables 5, 6 and 8 at any scale: `python workflows/ablate.py --study objective`; see `--help`.

Settings of pre-training and a study go in. Its variants are pre-trained, each is fine-tuned on some
tasks, and a report compares them, next to the paper's figures. The same command resumes after a
kill; a finished ablation prints its summary.
"""

import sys
from typing import TYPE_CHECKING

from bert_core.errors import UserError
from workflows.ablations.settings import AblateSettings, parse
from workflows.command import command
from workflows.runs.storage import open_storage
from workflows.runs.tracker import ARTIFACTS_NAME

if TYPE_CHECKING:
    from workflows.ablations.ablation import Ablation
    from workflows.sweeps.run import Driver


main = command(lambda given: ablate(parse(given)))


def ablate(settings: AblateSettings) -> bool:
    """Trains what is missing of an ablation and writes its report; False when told to stop.

    Raises `UserError` for input that the user can fix.
    """
    from workflows.ablations.ablation import opened_ablation

    storage = open_storage(settings.storage)
    print(f"storage  {storage.folder}", flush=True)
    with opened_ablation(settings, storage) as ablation:
        announce(ablation)
        if ablation.folder.summary.exists():
            print(ablation.folder.finished_summary())
            return True
        return train(ablation)


def train(ablation: "Ablation") -> bool:
    """Trains what is left, and reports after each stage."""
    from workflows.ablations.report import summary_lines, write_ablation_report
    from workflows.ablations.run import AblationRun, note_figures
    from workflows.sweeps.run import started

    artifacts = ablation.folder.path / ARTIFACTS_NAME
    with started(ablation) as driver:

        def report() -> list[str]:
            outcome = ablation.outcome(driver.at_once)
            return summary_lines(write_ablation_report(outcome, artifacts), artifacts)

        complete = AblationRun(ablation, driver, look=report).train()
        driver.status = "KILLED"
        lines = report()
        if complete:
            note_figures(ablation)
            driver.end("FAILED" if ablation.failures() else "FINISHED")
    if not complete:
        print("stopped; the same command goes on")
        return False
    conclude(ablation, driver, lines)
    return True


def announce(ablation: "Ablation") -> None:
    """Prints what is compared, on what, and where it will lie."""
    settings, num_tasks = ablation.settings, len(ablation.tasks)
    lines = [f"ablation {ablation.folder.name}", f"folder   {ablation.folder.path}"]
    for each in ablation.variants:
        state = "is pre-trained" if each.is_finished else "is to be pre-trained"
        lines.append(f"variant  {each.variant.title:<16} {each.name} {state}")
    lines.append(f"tasks    {', '.join(task.key for task in ablation.tasks)}")
    num_trials = len(ablation.variants) * num_tasks * settings.seeds
    lines.append(
        f"runs     {len(ablation.left())} of {len(ablation.variants)} pre-trainings left, then "
        f"{num_trials} fine-tunings of {settings.seeds} seeds"
    )
    print("\n".join(lines), flush=True)


def conclude(ablation: "Ablation", driver: "Driver", lines: list[str]) -> None:
    """Prints the summary, kept unless something is still to do.

    Raises `UserError` where no pre-training has finished.
    """
    from workflows.sweeps.run import print_summary, unsent

    failures = ablation.failures()
    if not any(variant.is_finished for variant in ablation.variants):
        remedy = "fix the cause and repeat the command"
        raise UserError("no pre-training has finished", failures[0], remedy)
    if failures:
        lines = [*lines, "again        the same command tries what has failed once more"]
    print_summary(ablation, lines, unsent(driver.tracking), "sends them", keep=not failures)


if __name__ == "__main__":
    sys.exit(main())

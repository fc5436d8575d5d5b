"""Sweeps over settings of fine-tuning: `python workflows/tune.py --task mrpc --help`.

Labelled data, a BERT folder and axes go in. Every trial is an ordinary run, a report ranks the
settings, and the best model is registered as `challenger`. The same command resumes after a kill.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workflows.command import command
from workflows.finetuning.settings import task_and_approach
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line
from workflows.sweeps.settings import TuneSettings, refuse_worker_counts, tune_settings_class

if TYPE_CHECKING:
    from workflows.sweeps.sweep import Sweep


main = command(lambda given: tune(parse(given)))


def parse(arguments: Sequence[str]) -> TuneSettings:
    """The settings; which there are is decided by --task and --approach, or the preset's."""
    settings_class = tune_settings_class(*task_and_approach(arguments))
    refuse_worker_counts(arguments)
    return parse_command_line(settings_class, arguments)


def tune(settings: TuneSettings) -> bool:
    """Trains what is missing of a sweep and writes its report; False when told to stop.

    Raises `UserError` for what the user can fix.
    """
    from workflows.sweeps.sweep import opened_sweep

    storage = open_storage(settings.storage)
    print(f"storage  {storage.folder}", flush=True)
    with opened_sweep(settings, storage) as sweep:
        announce(sweep)
        if sweep.folder.has_answered(settings.asked()) and not sweep.left():
            print(sweep.folder.finished_summary())
            return True
        name = settings.tracking.asked_name
        if name is not None and not sweep.folder.begun:
            from workflows.versions.registration import refuse_unregistrable

            refuse_unregistrable(name, sweep.folder.name, sweep.tracking_uri)
        return train(sweep)


def train(sweep: "Sweep") -> bool:
    """Trains what is left, writes the report and registers the winner."""
    from workflows.sweeps.run import (
        SweepRun,
        conclude,
        export_winner,
        started,
        write_folds,
        write_report,
    )

    results = None
    with started(sweep) as driver:
        complete = SweepRun(sweep, driver).train()
        driver.status = "KILLED"
        if complete:
            results = export_winner(sweep, driver)
            driver.end("FINISHED" if sweep.best() else "FAILED")
        lines = write_report(sweep, driver.at_once) + write_folds(sweep)
    if not complete:
        print("stopped; the same command goes on")
        return False
    conclude(sweep, driver, results, lines)
    return True


def announce(sweep: "Sweep") -> None:
    """Prints what is about to be tried, on what, and where it will lie."""
    settings, left = sweep.settings, len(sweep.left())
    print(f"sweep    {sweep.folder.name}\nfolder   {sweep.folder.path}")
    for axis in settings.axis:
        print(f"axis     {axis}")
    print("\n".join(sweep.data.tally_lines))
    print(f"trials   {len(sweep.trials)}, {left} left", flush=True)


if __name__ == "__main__":
    sys.exit(main())

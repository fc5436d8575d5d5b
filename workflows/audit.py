"""Finds label errors of training data: `python workflows/audit.py --task mrpc --help`.

Labelled data and an encoder go in; suspects come out, ranked, with the estimated noise and what a
model gains without them. The same command resumes after a kill.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import yaml

from bert_core.disk import write_atomically
from bert_core.evaluation.label_errors import refuse_without_cleanlab
from workflows.audits.settings import (
    AuditSettings,
    audit_settings_class,
    refuse_contradictions,
    sweep_settings,
    with_dev,
)
from workflows.command import command
from workflows.finetuning.settings import task_and_approach
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line
from workflows.sweeps.settings import refuse_worker_counts

if TYPE_CHECKING:
    from workflows.sweeps.sweep import Sweep

KIND = "audits"
"""The folder of audits in the storage."""


main = command(lambda given: audit(parse(given)))


def parse(arguments: Sequence[str]) -> AuditSettings:
    """The settings; which there are is decided by --task and --approach, or the preset's."""
    settings_class = audit_settings_class(*task_and_approach(arguments))
    refuse_worker_counts(arguments)
    return parse_command_line(settings_class, arguments)


def audit(settings: AuditSettings) -> bool:
    """Trains what is missing of an audit and writes its report; False when told to stop.

    Raises `UserError` for what the user can fix.
    """
    refuse_contradictions(settings)
    refuse_without_cleanlab()
    from workflows.audits.run import is_reported, refuse_unfit_dev, refuse_unjudged, train
    from workflows.sweeps.sweep import opened_sweep

    storage = open_storage(settings.storage)
    print(f"storage  {storage.folder}", flush=True)
    settings = with_dev(settings)
    with opened_sweep(sweep_settings(settings), storage, KIND) as sweep:
        refuse_unjudged(sweep)
        text = yaml.safe_dump(settings.portable(), sort_keys=False)
        head = "# the settings of an audit of workflows/audit.py\n"
        write_atomically(sweep.folder.settings, head + text)
        announce(settings, sweep)
        if sweep.folder.summary.exists() and not sweep.left() and is_reported(settings, sweep):
            print(sweep.folder.finished_summary())
            return True
        if settings.retrain and sweep.left():
            refuse_unfit_dev(settings, storage)
        return train(settings, storage, sweep)


def announce(settings: AuditSettings, sweep: "Sweep") -> None:
    """Prints what is about to be audited, and where it will lie."""
    data = sweep.data
    count = len(data.train.examples) + len(data.dev.examples)
    print(f"audit    {sweep.folder.name}\nfolder   {sweep.folder.path}")
    print(f"data     {count:,} training examples in {settings.folds} folds")
    if settings.split is not None:
        print(f"held out {settings.split:.4g} of the training examples, not audited, as dev")
    print("\n".join(data.tally_lines))
    models = f"{settings.seeds} models each, " if settings.seeds > 1 else ""
    print(f"runs     {settings.folds} folds, {models}{len(sweep.left())} left", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Pre-trains a BERT encoder: `python workflows/pretrain.py --help`.

Token shards (or text) and settings go in; checkpoints, a model folder and an MLflow version come
out. The same command goes on after any death; a finished run prints its summary.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bert_core.text.shards import TokenShards, open_shards
from workflows.command import run_command
from workflows.pretraining.job import PretrainingJob
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.setup import announce, prepared_text, refuse_unfit_shards
from workflows.pretraining.start import Start, continue_from, find_start, refuse_another_tokenizer
from workflows.runs.folder import RunFolder
from workflows.runs.opening import open_run
from workflows.runs.remote import RemoteRun
from workflows.runs.storage import Storage, open_storage
from workflows.settings import parse_command_line, settings_hash
from workflows.training.job import train_and_register


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (see `run_command`)."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: bool(pretrain(parse_command_line(PretrainSettings, given))))


def pretrain(settings: PretrainSettings) -> RunFolder | None:
    """Trains, or goes on training, and registers; None when the run was told to stop.

    Raises `UserError` for what the user can mend.
    """
    storage = open_storage(settings.storage)
    if storage.uri is not None:
        print(f"address  {storage.uri}")
    print(f"storage  {storage.folder}", flush=True)
    start = find_start(settings, storage)
    settings = continue_from(settings, start)
    tokenizer = None if start is None else start.folder
    prepared = settings.shards or prepared_text(settings, storage.folder, tokenizer)
    shards = open_shards(prepared, "train")
    with opened_pretraining(settings, storage, shards, start) as job:
        announce(settings, job.folder, shards, start)
        if job.folder.summary.exists():
            print(job.folder.finished_summary())
            return job.folder
        from workflows.pretraining.results import write_results  # loads torch

        return job.folder if train_and_register([job], write_results) else None


@contextmanager
def opened_pretraining(
    settings: PretrainSettings, storage: Storage, shards: TokenShards, start: Start | None = None
) -> Iterator[PretrainingJob]:
    """The run of these settings, taken for this process alone; new, to go on, or finished.

    With a `start` the settings are those of `continue_from`. The run's name is made of the preset
    and a hash where the settings give none. Raises `UserError` for what the user can mend.
    """
    refuse_unfit_shards(shards, settings.rows)
    recipe = settings.recipe() | {"data": shards.data_hash}
    if start is not None:
        refuse_another_tokenizer(start, shards, settings.text)
        recipe["start"] = start.sha256
    name = settings.name or f"{Path(settings.preset).stem}-{settings_hash(recipe)}"
    remote = None if storage.uri is None else RemoteRun(storage.uri, name)
    with open_run(storage.folder, name, recipe, fresh=settings.fresh, remote=remote) as folder:
        yield PretrainingJob(settings, storage, folder, shards, remote, start=start)


if __name__ == "__main__":
    sys.exit(main())

"""Pre-trains a BERT encoder: `python workflows/pretrain.py --help`.

Token shards (or text) and settings go in; checkpoints, a model folder and an MLflow version come
out. The same command goes on after any death; a finished run prints its summary.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bert_core.text.shards import TokenShards, open_shards
from workflows.command import run_command
from workflows.pretrain_settings import PretrainSettings
from workflows.pretraining_setup import (
    announce,
    prepared_text,
    refuse_a_full_disk,
    refuse_unfit_shards,
    tracked_run,
    write_settings,
)
from workflows.remote_run import RemoteRun
from workflows.run_folder import RunFolder, open_run
from workflows.settings import parse_command_line, settings_hash
from workflows.storage import Storage, open_storage
from workflows.tracker import ARTIFACTS_NAME, Tracker

# Imports within functions load torch and Ray, which takes seconds: --help and whatever is wrong
# with settings, storage or shards are answered before.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (see `run_command`)."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: pretrain(parse_command_line(PretrainSettings, given)))


def pretrain(settings: PretrainSettings) -> bool:
    """Trains, or goes on training, and registers; False when the run was told to stop.

    Raises `UserError` for what the user can mend.
    """
    storage = open_storage(settings.storage)
    if storage.uri is not None:
        print(f"address  {storage.uri}")
    print(f"storage  {storage.folder}", flush=True)
    shards_folder = settings.shards or prepared_text(settings, storage.folder)
    shards = open_shards(shards_folder, "train")
    refuse_unfit_shards(shards, settings.rows)
    recipe = settings.recipe() | {"data": shards.data_hash}
    name = settings.name or f"{Path(settings.preset).stem}-{settings_hash(recipe)}"
    remote = None if storage.uri is None else RemoteRun(storage.uri, name)
    with open_run(storage.folder, name, recipe, fresh=settings.fresh, remote=remote) as folder:
        announce(settings, folder, shards)
        if folder.summary.exists():
            print(folder.summary.read_text(encoding="utf-8"))
            return True
        return train_and_register(settings, storage, folder, shards, remote)


def train_and_register(
    settings: PretrainSettings,
    storage: Storage,
    folder: RunFolder,
    shards: TokenShards,
    remote: RemoteRun | None,
) -> bool:
    """What is left of the run, with the tracker beside it; False when it was told to stop."""
    from workflows.pretraining_report import register, write_results

    refuse_a_full_disk(settings, folder, shards.vocab_size)
    if remote is not None and not settings.fresh:
        remote.catch_up(folder)
    unfinished = folder.last_step() < settings.total_steps
    if unfinished:
        from workflows.cluster_capacity import join_cluster_with_room

        join_cluster_with_room(settings.cluster)
    write_settings(settings, folder, folder.path / ARTIFACTS_NAME)
    run = tracked_run(settings, storage.folder, folder, shards)
    if remote is not None:
        remote.begin(folder, fresh=settings.fresh)
    tracker = Tracker(folder.path, run)
    status, patience_seconds = "FAILED", 5.0
    stopped_at = results = None
    try:
        if unfinished:
            stopped_at = train_on_workers(settings, folder, shards, remote)
        if stopped_at is None:
            results = write_results(settings, folder, shards)
            status, patience_seconds = "FINISHED", 120.0
        else:
            status = "KILLED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking = tracker.finish(status, patience_seconds)
    if results is None:
        print(f"stopped after step {stopped_at:,}; the same command goes on from there")
        return False
    register(settings, storage.folder, folder, results, tracking, remote=remote)
    if remote is not None:
        remote.push_results(folder)
    return True


def train_on_workers(
    settings: PretrainSettings,
    folder: RunFolder,
    shards: TokenShards,
    remote: RemoteRun | None,
) -> int | None:
    """Trains to the last step; returns the step at which it was told to stop, or None."""
    from workflows.cluster import run_on_workers
    from workflows.live_line import LiveLine
    from workflows.pretraining_worker import train_worker
    from workflows.system_metrics import note_throughput

    config = {
        "settings": settings.model_dump(mode="json"),
        "run_folder": str(folder.path),
        "shards": str(shards.folder.absolute()),
    }
    with closing(LiveLine(settings.total_steps)) as line:

        def show(news: dict[str, Any]) -> None:
            line(news)
            note_throughput(folder.path, news)
            if remote is not None:
                remote.follow(folder, news.get("checkpoint"))

        outcome = run_on_workers(
            train_worker, config, settings=settings.cluster, folder=folder.ray, show=show
        )
    if remote is not None:
        remote.settle(folder, outcome["step"], settings.checkpoint.keep)
    return outcome["step"] if outcome["stopped"] else None


if __name__ == "__main__":
    sys.exit(main())

"""Pre-trains a BERT encoder: `python workflows/pretrain.py --help`.

Token shards (or text) and settings go in; checkpoints, a model folder and an MLflow version come
out. The same command goes on after any death; a finished run prints its summary.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows.command import run_command
from workflows.pretrain_settings import PretrainSettings
from workflows.settings import parse_command_line, settings_hash

if TYPE_CHECKING:
    from bert_core.text.shards import TokenShards
    from workflows.run_folder import RunFolder


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (see `run_command`)."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: pretrain(parse_command_line(PretrainSettings, given)))


def pretrain(settings: PretrainSettings) -> bool:
    """Trains, or goes on training, and registers; False when the run was told to stop.

    Raises `UserError` for what the user can mend.
    """
    # Not at the top: --help and a mistake in the settings answer before torch and Ray are loaded.
    from bert_core.text.shards import open_shards
    from workflows.pretraining_setup import (
        announce,
        local_storage,
        prepared_text,
        refuse_unfit_shards,
    )
    from workflows.run_folder import open_run

    storage = local_storage(settings.storage)
    print(f"storage  {storage}", flush=True)
    shards_folder = settings.shards or prepared_text(settings, storage)
    shards = open_shards(shards_folder, "train")
    refuse_unfit_shards(shards, settings.rows)
    recipe = settings.recipe() | {"data": shards.data_hash}
    name = settings.name or f"{Path(settings.preset).stem}-{settings_hash(recipe)}"
    with open_run(storage, name, recipe, fresh=settings.fresh) as folder:
        announce(settings, folder, shards)
        if folder.summary.exists():
            print(folder.summary.read_text(encoding="utf-8"))
            return True
        return train_and_register(settings, storage, folder, shards)


def train_and_register(
    settings: PretrainSettings, storage: Path, folder: "RunFolder", shards: "TokenShards"
) -> bool:
    """What is left of the run, with the tracker beside it; False when it was told to stop."""
    from workflows.pretraining_report import register, write_results
    from workflows.pretraining_setup import refuse_a_full_disk, tracked_run, write_settings
    from workflows.tracker import ARTIFACTS_NAME, Tracker

    refuse_a_full_disk(settings, folder, shards.vocab_size)
    unfinished = folder.last_step() < settings.total_steps
    if unfinished:
        from workflows.cluster_room import refuse_more_workers_than_fit
        from workflows.ray_tasks import connect

        connect()
        refuse_more_workers_than_fit(settings.cluster)
    write_settings(settings, folder, folder.path / ARTIFACTS_NAME)
    tracker = Tracker(folder.path, tracked_run(settings, storage, folder, shards))
    status, patience_seconds = "FAILED", 5.0
    stopped_at = results = None
    try:
        if unfinished:
            stopped_at = train_on_workers(settings, folder, shards)
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
    register(settings, storage, folder, results, tracking)
    return True


def train_on_workers(
    settings: PretrainSettings, folder: "RunFolder", shards: "TokenShards"
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

        outcome = run_on_workers(
            train_worker, config, settings=settings.cluster, folder=folder.ray, show=show
        )
    return outcome["step"] if outcome["stopped"] else None


if __name__ == "__main__":
    sys.exit(main())

"""A program that writes down what each worker of a cluster's TPU slices knows of its place.

python tpu_hosts_seen.py NUM_SLICES FOLDER
"""

import json
import os
import sys
from pathlib import Path

from workflows.clusters.capacity import join_cluster_with_room
from workflows.clusters.settings import ClusterSettings
from workflows.clusters.workers import current_worker, workers_at
from workflows.messages import Outcome

NAMES = ("TPU_NAME", "TPU_WORKER_ID", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")


def look(config):
    """Runs on each host."""
    with current_worker(config) as worker:
        import jax

        known = {name: os.environ.get(name) for name in NAMES}
        known |= {"process": jax.process_index(), "devices": jax.device_count()}
        Path(config["folder"], f"{worker.rank}.json").write_text(json.dumps(known))
        outcome = Outcome(0, stopped=False)
        worker.begin_job(0)
        worker.end_job(outcome)
    return [outcome]


if __name__ == "__main__":
    settings = ClusterSettings(tpu="v4", topology="2x2x2", num_slices=int(sys.argv[1]))
    folder = Path(sys.argv[2])
    join_cluster_with_room(settings)
    config = {"jobs": [None], "folder": str(folder)}
    with workers_at(look, config, settings=settings, folder=folder / "ray") as workers:
        pass
    workers.outcome(0)

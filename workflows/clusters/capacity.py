"""A cluster's capacity for a run's workers: what is missing before a run and while it waits."""

import os
import time
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.tpu import get_num_tpu_slices

from bert_core.errors import UserError, require
from workflows.clusters.channel import WorkerStatus
from workflows.clusters.settings import ClusterSettings
from workflows.clusters.tasks import connect
from workflows.messages import RunProgress
from workflows.progress import duration

QUIET_SECONDS = 5.0
"""How long a run may say nothing before one looks what it waits for."""
LOOK_SECONDS = 2.0
"""Seconds between two looks at the cluster."""
_PACKAGES = ("jax", "optax", "torchax")
_SLICE, _SHAPE = ("ray.io/tpu-slice-name", "ray.io/tpu-topology")
_NAMED_NODES = 8


def join_cluster_with_room(settings: ClusterSettings) -> None:
    """Joins a cluster, or starts one here (`connect`), that has the resources for the workers.

    Raises `UserError` for what would otherwise wait for ever on a cluster that cannot grow.
    """
    if settings.tpu is not None:
        refuse_missing_packages()
    connect()
    if settings.tpu is not None:
        refuse_missing_slices(settings)
    have = ray.cluster_resources()
    workers = settings.fewest_workers
    for kind, wanted in _needs(settings, workers).items():
        if wanted > have.get(kind, 0) and not os.environ.get("RAY_ADDRESS"):
            raise UserError(
                f"{_count(workers)} {'needs' if workers == 1 else 'need'} {wanted:g} {kind}",
                f"Ray sees {have.get(kind, 0):g}",
                f"{_less(kind, workers)}, or join a larger cluster with RAY_ADDRESS",
            )


def refuse_missing_packages() -> None:
    """Raises `UserError` where the extra `tpu` is not installed here.

    Ray would start workers without it again and again; JAX itself is left alone, for it would
    take the TPU away from them.
    """
    place = "in the checkout on every machine"
    what, where = "training on TPU needs {}", "not installed here"
    require(what, *_PACKAGES, where=where, extra="tpu", place=place)


def refuse_missing_slices(settings: ClusterSettings) -> None:
    """Raises `UserError` where the cluster lacks whole slices of this kind.

    For a process that has joined the cluster. Whether an autoscaler could bring slices, Ray does
    not say: they have to be there. A job waits for CPUs and GPUs alone.
    """
    wanted, kind = settings.fewest_slices, settings.tpu_slice
    whole = get_num_tpu_slices(kind.topology, kind.accelerator_type)
    if whole >= wanted:
        return
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not any(node["Resources"].get("TPU") for node in nodes):
        what = "no TPU found"
    else:
        what = f"{whole} whole TPU slices {kind} found, {wanted} needed"
    shown = [described_node(node) for node in nodes[:_NAMED_NODES]]
    rest = [f"{len(nodes) - _NAMED_NODES} more"] if len(nodes) > _NAMED_NODES else []
    raise UserError(
        what,
        f"Ray sees {'; '.join([*shown, *rest])}",
        "join a cluster with TPU nodes with RAY_ADDRESS (docs/tpu.md), or choose another --profile",
    )


def described_node(node: dict[str, Any]) -> str:
    """A node as `ray.nodes` has it, in words: its address, what it has, its place in a slice."""
    kinds = {
        name: amount
        for name, amount in sorted(node["Resources"].items())
        if name in ("CPU", "GPU") or name.startswith(("TPU", "accelerator_type:"))
    }
    parts = [f"{amount:g} {name}" for name, amount in kinds.items()]
    labels = node.get("Labels") or {}
    if _SHAPE in labels:
        parts.append(f"in slice {labels.get(_SLICE, '?')} of {labels[_SHAPE]}")
    return f"{node['NodeManagerAddress']} with {', '.join(parts) or 'nothing'}"


def _less(kind: str, workers: int) -> str:
    """How to ask for less of a resource; of one worker, not by fewer workers."""
    if workers > 1:
        return "lower --cluster.num_workers"
    alone = {
        "CPU": "lower --cluster.cpus_per_worker",
        "GPU": "set --profile local or --cluster.use_gpu false",
    }
    return alone.get(kind, "choose another --profile")


class Waiting:
    """Finds out, when there is no progress for a while, whether workers are missing and why."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._progress: dict[int, RunProgress] = {}
        self._progress_time = time.monotonic()
        self._next_look = self._progress_time + QUIET_SECONDS
        self._text = ""
        self.at_work = False
        """Whether there are workers that could be asked to stop."""

    def text(self, status: WorkerStatus) -> str:
        """What the run waits for, and how long already; empty while workers are at work."""
        now = time.monotonic()
        if status.ended or status.progress != self._progress:
            self._progress, self._progress_time = status.progress, now
            self._next_look = now + QUIET_SECONDS
            self.at_work, self._text = True, ""
        elif now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            missing = self._missing(status)
            self.at_work = not missing
            self._text = f"{missing}  {duration(now - self._progress_time)}" if missing else ""
        return self._text

    def _missing(self, status: WorkerStatus) -> str:
        groups = _groups_of_this_job()
        if groups.get(status.group or "", {}).get("state") == "CREATED":
            return ""
        fewest = self._settings.fewest_workers
        sizes = [(len(group["bundles"]), group["state"]) for group in groups.values()]
        pending = [size for size, state in sizes if state != "CREATED"]
        if len(pending) < len(groups):
            return f"starting {_count(max(sizes)[0])}"
        workers = max(pending, default=fewest)
        needs, free = _needs(self._settings, workers), ray.available_resources()
        if not pending and all(free.get(kind, 0) >= needs[kind] for kind in needs):
            return "starting Ray Train"
        elastic = self._settings.num_workers != fewest and workers == fewest
        return (
            f"waiting for {'at least ' if elastic else ''}{_count(workers)} "
            f"({_list(needs)}); Ray has {_list({kind: free.get(kind, 0) for kind in needs})} free"
        )


def _needs(settings: ClusterSettings, workers: int) -> dict[str, float]:
    """What Ray reserves for so many workers, by kind."""
    needs = {"CPU": settings.cpus_per_worker * workers, "GPU": float(settings.use_gpu) * workers}
    if settings.tpu is not None:
        needs["TPU"] = float(settings.tpu_slice.chips_per_host * workers)
    return {kind: number for kind, number in needs.items() if number}


def _groups_of_this_job() -> dict[str, dict[str, Any]]:
    """Ray's live placement groups that this driver's job has made, by id, which ends in the job's.

    Ray Train has one at a time: CREATED when its resources are reserved, else waiting for them.
    Those by which it holds a TPU slice before it reserves the hosts are left out.
    """
    job = ray.get_runtime_context().get_job_id()
    return {
        name: group
        for name, group in placement_group_table().items()
        if name.endswith(job) and group["state"] != "REMOVED" and not _is_slice_head(group)
    }


def _is_slice_head(group: dict[str, Any]) -> bool:
    kinds = [kind for bundle in group["bundles"].values() for kind in bundle]
    return len(kinds) == 1 and kinds[0].startswith("TPU-") and kinds[0].endswith("-head")


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _list(amounts: dict[str, float]) -> str:
    return ", ".join(f"{number:g} {kind}" for kind, number in amounts.items())

"""Whether the nodes of a cluster see the folder that the driver has made for its tasks to write to.

In: the folder, and what a task needs of a node. Out: nothing, or a `UserError` that names the nodes
where the folder is another one or none: what is written there would be lost.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bert_core.errors import UserError

_ANSWER_SECONDS = 90.0
"""A node's first task brings the job's files there and starts a process."""
_PATIENCE_SECONDS = 3.0
"""How long a shared file system may take to show on one machine what another has written."""


def refuse_folder_out_of_reach(folder: Path, needs: Mapping[str, float]) -> None:
    """Looks for a file of the driver's from each other node that has what a task needs.

    Nodes that do not answer are not waited for: they may be on their way out. Takes no time where
    there is one node. The driver is connected to Ray, and the folder exists.

    Raises `UserError` where a node sees the folder without the file, or does not see it.
    """
    nodes = _other_nodes(needs)
    if not nodes:
        return
    marker = folder / f".reached-{uuid4().hex}"
    marker.touch()
    try:
        missing = _without(marker, nodes)
    finally:
        marker.unlink(missing_ok=True)
    if missing:
        raise UserError(
            f"{len(missing)} of {len(nodes)} other nodes cannot reach the folder",
            f"{folder} at {', '.join(missing)}",
            "give --storage, --output or --shards in a folder that all nodes share; a run may lie "
            "at an address too, --storage s3://bucket/folder",
        )


def _other_nodes(needs: Mapping[str, float]) -> dict[str, str]:
    """Addresses by id of the living nodes that have what is needed, but the driver's own."""
    own = _own_node()
    return {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"]
        and node["NodeID"] != own
        and all(node["Resources"].get(kind, 0) >= need for kind, need in needs.items())
    }


def _own_node() -> str:
    return ray.get_runtime_context().get_node_id()


def _without(marker: Path, nodes: Mapping[str, str]) -> list[str]:
    """The addresses of the nodes that answer and do not see the file, sorted."""
    look: Any = ray.remote(num_cpus=0, max_retries=0)(_sees)
    answers = {
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            str(marker)
        ): address
        for node, address in nodes.items()
    }
    answered, late = ray.wait(list(answers), num_returns=len(answers), timeout=_ANSWER_SECONDS)
    for each in late:
        ray.cancel(each, force=True)
    return sorted(answers[each] for each in answered if not _answer(each))


def _answer(reference: Any) -> bool:  # noqa: ANN401 - Ray's reference
    try:
        return ray.get(reference)
    except RayError:  # the node has gone
        return True


def _sees(path: str) -> bool:
    """Runs on a node: whether the file is there."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not Path(path).exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True

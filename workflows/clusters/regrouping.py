"""When the workers of a run should save, leave, and begin again elsewhere: seen from its driver.

A node that is about to go, such as a spot machine that has had its notice (`ray drain-node`), is
left while it is there. A run with fewer workers than it may have takes the room that it finds.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Self

import ray
from ray._private.state import available_resources_per_node, state, total_resources_per_node
from ray.exceptions import RayError
from ray.util import placement_group_table

from bert_core.errors import UserError
from workflows.clusters.settings import ClusterSettings

LOOK_SECONDS = 1.0
"""Seconds between two looks at the nodes."""
GROW_AFTER_SECONDS = 30.0
"""How long there must be room for more workers before a run begins again with them."""
SLICE_LABEL = "ray.io/tpu-slice-name"
POD_TYPE_LABEL = "ray.io/tpu-pod-type"

Resources = Mapping[str, Mapping[str, float]]
"""Amounts by kind, of each node by its id."""


class NodeWatch:
    """Watches the nodes in a thread, as long as it is entered, and asks workers to leave.

    `group` says by which placement group the workers are held, None before they begin;
    `leave(group)` asks those of it, once.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        group: Callable[[], str | None],
        leave: Callable[[str], object],
    ) -> None:
        self._regrouping = Regrouping(settings)
        self._group = group
        self._leave = leave
        self._left: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="node-watch")
        self.reason = ""
        """Why the workers were asked to leave, until others have begun in their place."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def look(self) -> None:
        """Looks at the nodes once."""
        group = self._group()
        if group is None or group == self._left:
            return
        self.reason = self._regrouping.reason(group)
        if self.reason:
            self._left = group
            self._leave(group)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except (RayError, UserError):  # the coordinator actor is gone: the driver reports it
                continue


class Regrouping:
    """Decides whether the workers of a run should begin again on other nodes."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._room_since: float | None = None
        self._patience_seconds = GROW_AFTER_SECONDS
        self._grown_from = 0

    def reason(self, group: str) -> str:
        """Why the workers of a placement group should leave now; empty where they should not."""
        table = placement_group_table().get(group, {})
        if table.get("state") != "CREATED":  # they are going already
            return ""
        nodes = list(table["bundles_to_node_id"].values())
        going = leaving_nodes()
        gone = sorted(going.intersection(nodes))
        if gone:
            return f"{_addresses(gone)} is about to go: saving, to go on elsewhere"
        return self._growth(len(nodes), going)

    def _growth(self, workers: int, going: set[str]) -> str:
        """Says that there is room for more workers, once there has been for long enough."""
        if workers > self._grown_from:
            self._patience_seconds = GROW_AFTER_SECONDS
        free = without(available_resources_per_node(), going)
        possible = min(self._settings.most_workers, workers + places(self._settings, free))
        now = time.monotonic()
        if possible <= workers:
            self._room_since = None
            return ""
        self._room_since = self._room_since or now
        if now - self._room_since < self._patience_seconds:
            return ""
        # Where the room turns out to be none, the next try comes later.
        self._patience_seconds *= 2
        self._grown_from, self._room_since = workers, None
        return f"there is room for {possible} workers: saving, to go on with them"


def within_room(settings: ClusterSettings) -> ClusterSettings:
    """The settings with no more workers than have room on nodes that stay, but the fewest at least.

    Ray counts nodes that are about to go among those it has, and would wait for places there.
    """
    going = leaving_nodes()
    if isinstance(settings.num_workers, int) or not going:
        return settings
    least, most = settings.num_workers
    room = places(settings, without(total_resources_per_node(), going))
    return settings.model_copy(update={"num_workers": (least, max(least, min(most, room)))})


def leaving_nodes() -> set[str]:
    """The ids of the nodes that are being drained; Ray has no public way to ask."""
    return set(state.get_draining_nodes())


def without(nodes: Resources, left_out: set[str]) -> Resources:
    """The nodes but some."""
    return {node: resources for node, resources in nodes.items() if node not in left_out}


def places(settings: ClusterSettings, nodes: Resources) -> int:
    """How many workers find what they need on these nodes; on TPU those of whole slices alone."""
    needs = {"CPU": settings.cpus_per_worker}
    if settings.use_gpu:
        needs["GPU"] = 1
    if settings.tpu is not None:
        needs["TPU"] = settings.tpu_slice.chips_per_host
    fitting = {
        node: min(int(resources.get(kind, 0) / need + 1e-6) for kind, need in needs.items())
        for node, resources in nodes.items()
    }
    if settings.tpu is None:
        return sum(fitting.values())
    shape = settings.tpu_slice
    slices = {
        node["NodeID"]: labels.get(SLICE_LABEL)
        for node in ray.nodes()
        if (labels := node["Labels"] or {}).get(POD_TYPE_LABEL) == shape.pod_type
    }
    hosts = Counter(slices.get(node) for node, number in fitting.items() if number)
    whole = shape.num_hosts
    return whole * sum(name is not None and number >= whole for name, number in hosts.items())


def _addresses(nodes: list[str]) -> str:
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return ", ".join(f"node {addresses.get(node, node)}" for node in nodes)

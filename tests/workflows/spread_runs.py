"""Runs over several Ray nodes, each with a home folder of its own, and ways to lose a node."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from pretraining_runs import Run
from ray._private.node import Node
from ray.cluster_utils import Cluster
from storage_addresses import CREDENTIALS

from workflows.runs.journal import read_records


class Nodes:
    """A head without CPUs, and nodes with one each: as many workers as there are of these."""

    def __init__(self, homes: Path) -> None:
        self._homes = homes
        self._started = 0
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.all: list[Node] = []

    @property
    def address(self) -> str:
        """Where a driver joins."""
        return str(self._cluster.address)

    def add(self) -> Node:
        """Starts a node."""
        home = self._homes / f"node-{self._started}"
        home.mkdir(parents=True)
        self._started += 1
        node = self._cluster.add_node(num_cpus=1, env_vars={"HOME": str(home), **CREDENTIALS})
        self.all.append(node)
        return node

    def of(self, worker: psutil.Process) -> Node:
        """The node that a worker runs on."""
        parents = worker.parents()
        return next(node for node in self.all if _raylet(node) in parents)

    def drain(self, node: Node, seconds: int) -> None:
        """What a cloud's notice leads to."""
        options = {
            "address": self.address,
            "node-id": node.node_id,
            "reason": "DRAIN_NODE_REASON_PREEMPTION",
            "reason-message": "the machine is taken back",
            "deadline-remaining-seconds": seconds,
        }
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        subprocess.run(["ray", "drain-node", *arguments], check=True, timeout=60)

    def lose(self, node: Node, how: signal.Signals) -> None:
        """Sends SIGKILL to all processes of a node, or SIGTERM to that which leads them."""
        with suppress(psutil.NoSuchProcess):
            raylet = _raylet(node)
            processes = [raylet, *raylet.children(recursive=True)]
            for each in processes if how == signal.SIGKILL else [raylet]:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(how)
            psutil.wait_procs(processes, timeout=60)
        self._cluster.remove_node(node, allow_graceful=False)
        self.all.remove(node)

    def shutdown(self) -> None:
        """Ends all nodes."""
        self._cluster.shutdown()


def _raylet(node: Node) -> psutil.Process:
    return psutil.Process(node.all_processes["raylet"][0].process.pid)


class SpreadRun(Run):
    """A run at an address, of which driver and nodes have copies; or in a folder that all share.

    Its `storage` holds the homes of all.
    """

    @property
    def driver_home(self) -> Path:
        """The home folder of the driver."""
        return self.storage / "driver"

    @property
    def folder(self) -> Path:
        """Where a worker writes, or has written last; the driver's where no node has a copy."""
        copies = self.storage.glob(f"node-*/.bertline/copies/*/runs/{self.name}/journal.jsonl")
        newest = max(copies, key=lambda path: path.stat().st_mtime, default=None)
        return self.driver_folder if newest is None else newest.parent

    @property
    def driver_folder(self) -> Path:
        """Where the driver has the run in the end."""
        copies = self.driver_home.glob(f".bertline/copies/*/runs/{self.name}")
        return next(copies, self.storage / "runs" / self.name)

    def finished_records(self) -> list[tuple[int, dict[str, float]]]:
        """The driver's journal, without times."""
        journal = self.driver_folder / "journal.jsonl"
        return [(each.step, each.metrics) for each in read_records(journal)]

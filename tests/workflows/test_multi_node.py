"""Pre-training over two Ray nodes, of which one is lost, or leaves, and another one joins."""

import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pretraining_runs import (
    Run,
    committed_checkpoints,
    find_writer,
    rank_one_beside,
    write_corpus,
    writer_of,
)
from ray._private.node import Node
from ray.cluster_utils import Cluster
from storage_addresses import CREDENTIALS, bucket_address
from two_ranks import train_by_two_ranks

from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
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
        return [(record.step, record.metrics) for record in read_records(journal)]


STEPS = 400
COMPARED = 50
"""Steps over which sums in another order change a loss by so little as is asked."""
NOTICE_SECONDS = 30
SETTINGS = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "checkpoint.every_steps": 20,
    "cluster.num_workers": "[1,2]",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory, corpus):
    """The run by two ranks without Ray, which nothing interrupts."""
    run = Run(tmp_path_factory.mktemp("reference"), "spread", corpus, STEPS, SETTINGS)
    train_by_two_ranks(run)
    return run


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="module")
def cluster(homes):
    nodes = Nodes(homes)
    yield nodes
    nodes.shutdown()


@pytest.fixture
def nodes(cluster):
    """A cluster of two nodes, beside a head that has no CPU."""
    while len(cluster.all) < 2:
        cluster.add()
    return cluster


def spread(nodes, homes, corpus, name, **settings):
    """A run on the cluster; the working copies lie in the homes of the nodes."""
    environment = CREDENTIALS | {
        "RAY_ADDRESS": nodes.address,
        # Ray knows the nodes as they were up to 20 s ago, and waits for so long for a lost one.
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
        "HOME": str(homes / "driver"),
    }
    (homes / "driver").mkdir(exist_ok=True)
    return SpreadRun(homes, name, corpus, STEPS, SETTINGS | settings, environment)


def losses(records):
    return {step: each["train/loss"] for step, each in records if "train/loss" in each}


def beginnings(driver):
    """The steps from which workers have gone on, in turn."""
    return [int(step) for step in re.findall(r"resuming from step (\d+)", driver.output())]


def expect_the_same(records, reference, same_until, change):
    """Bits as long as both trained; in the 50 steps after each change no more than sums differ."""
    ours, theirs = losses(records), losses(reference.records())
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    assert [record for record in records if record[0] <= same_until] == [
        record for record in reference.records() if record[0] <= same_until
    ]
    apart = {step: abs(ours[step] - theirs[step]) for step in ours}
    for step in change:
        worst = max(apart[each] for each in range(step + 1, step + COMPARED + 1))
        print(f"{COMPARED} steps from {step} on, losses differ by {worst:.2g} at most")
        assert worst < 1e-4
    assert ours != theirs, "it was another number of workers"
    assert max(apart.values()) < 0.02, "the same rows and masks to the end"


def expect_the_same_rows(run, reference):
    """As many rows and tokens seen as without a loss; the last group was of two workers."""
    ours, theirs = (
        read_checkpoint(newest_checkpoint(folder / "checkpoints")[0])
        for folder in (run.driver_folder, reference.folder)
    )
    assert (ours.step, ours.num_rows_seen) == (STEPS, theirs.num_rows_seen)
    assert ours.num_tokens_seen == theirs.num_tokens_seen
    return ours.world_size


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("place", "how"), [("folder", signal.SIGKILL), ("s3", signal.SIGTERM)], ids=["folder", "s3"]
)
def test_a_node_is_lost_and_one_joins(nodes, homes, corpus, reference, request, place, how):
    address = {}
    if place == "s3":
        address["storage"] = bucket_address(request.getfixturevalue("server"), "spread")
    run = spread(nodes, homes, corpus, f"lost-{place}", **address)
    driver = run.start()
    driver.until_step(70, 300)
    first = writer_of(run)
    other = rank_one_beside(first)
    assert other is not None
    node = nodes.of(other)
    assert node is not nodes.of(first), "a worker on each"
    if how == signal.SIGTERM:
        first.suspend()  # or the run would end while the node still takes its leave
    nodes.lose(node, how)
    until_the_loss = run.records()
    if how == signal.SIGTERM:
        first.resume()
    driver.until(lambda: find_writer(run) not in (None, first), 300, pause=0.2)
    driver.until(lambda: beginnings(driver), 60)
    (lost_at,) = beginnings(driver)
    assert until_the_loss == reference.records()[: len(until_the_loss)]
    assert lost_at % 20 == 0 and len(until_the_loss) - lost_at <= 40, "a checkpoint just before"

    driver.until_step(lost_at + COMPARED)
    alone = writer_of(run)
    alone.suspend()  # or the run would end before another node has joined
    nodes.add()
    driver.until(lambda: "room for 2 workers" in driver.output(), 200)
    alone.resume()
    assert driver.wait() == 0, driver.output()
    _, joined_at = beginnings(driver)
    assert joined_at >= lost_at + COMPARED
    expect_the_same(run.finished_records(), reference, lost_at, [lost_at, joined_at])
    assert expect_the_same_rows(run, reference) == 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_has_its_notice_is_left_in_time(nodes, homes, corpus, reference):
    never = {"checkpoint.every_steps": 10_000}
    run = spread(nodes, homes, corpus, "drained", **never)
    driver = run.start()
    driver.until_step(70, 300)
    node = nodes.of(writer_of(run))  # that of rank 0, which writes the checkpoints
    begin = time.monotonic()
    nodes.drain(node, NOTICE_SECONDS)
    driver.until(lambda: committed_checkpoints(run), NOTICE_SECONDS)
    print(f"from the notice to the checkpoint: {time.monotonic() - begin:.1f} s")
    left_at = run.step()
    assert committed_checkpoints(run) == [f"step-{left_at:08d}"]
    time.sleep(max(0.0, begin + NOTICE_SECONDS - time.monotonic()))
    nodes.lose(node, signal.SIGKILL)
    assert driver.wait() == 0, driver.output()
    assert "is about to go" in driver.output()
    assert beginnings(driver) == [left_at]
    expect_the_same(run.finished_records(), reference, left_at, [left_at])
    assert expect_the_same_rows(run, reference) == 1

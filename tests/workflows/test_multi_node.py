"""Pre-training over two Ray nodes, of which one is lost, or leaves, and another one joins."""

import re
import signal
import time

import pytest
from pretraining_runs import (
    Run,
    committed_checkpoints,
    find_writer,
    rank_one_beside,
    write_corpus,
    writer_of,
)
from spread_runs import Nodes, SpreadRun
from storage_addresses import CREDENTIALS, bucket_address
from two_ranks import train_by_two_ranks

from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

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
    return [int(step) for step in re.findall(r"going on from step (\d+)", driver.output())]


def expect_the_same(records, reference, same_until, change):
    """Bits as long as both trained; in the 50 steps after each change no more than sums differ."""
    ours, theirs = losses(records), losses(reference.records())
    assert ours.keys() == theirs.keys() == set(range(1, STEPS + 1))
    assert [each for each in records if each[0] <= same_until] == [
        each for each in reference.records() if each[0] <= same_until
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

"""Pre-training on two TPU slices of simulated hosts: reserved whole, one lost, one come back."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pretraining_runs import Run, find_writer, train_here, training_workers, write_corpus, writer_of
from tpu_nodes import add_host, host_of, lose_host, tpu_cluster

from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.ray]

COMPARED = 80
SETTINGS = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "optimizer.peak_learning_rate": 1e-3,
    "checkpoint.every_steps": 20,
}
PROGRAM = Path(__file__).with_name("tpu_hosts_seen.py")


@pytest.fixture(scope="module")
def cluster():
    with tpu_cluster(num_slices=2) as cluster:
        yield cluster


def test_two_slices_are_reserved_whole_and_told_of_each_other(cluster, tmp_path):
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    subprocess.run([sys.executable, PROGRAM, "2", tmp_path], env=environment, check=True)
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [each["process"] for each in seen] == [0, 1, 2, 3]
    assert [each["devices"] for each in seen] == [4] * 4, "one mesh over all hosts"
    assert [each["MEGASCALE_SLICE_ID"] for each in seen] == ["0", "0", "1", "1"]
    assert {each["MEGASCALE_NUM_SLICES"] for each in seen} == {"2"}
    places = [(each["TPU_NAME"], each["TPU_WORKER_ID"]) for each in seen]
    halves = [sorted(places[:2]), sorted(places[2:])]
    assert sorted(halves) == [[(f"slice-{number}", host) for host in "01"] for number in range(2)]


@pytest.mark.timeout(900)
def test_a_lost_slice_costs_its_workers_alone_and_is_taken_back(cluster, tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    reference = Run(tmp_path / "torch", "run", corpus, 100_000, SETTINGS)
    train_here(reference, stop_after=COMPARED)
    on_tpu = {"profile": "tpu-v4-16", "precision": "float32", "cluster.num_slices": "[1, 2]"}
    environment = {"RAY_ADDRESS": cluster.address}
    run = Run(tmp_path / "slices", "run", corpus, 100_000, SETTINGS | on_tpu, environment)
    driver = run.start()
    driver.until_step(30, 300)
    assert len({host_of(worker) for worker in training_workers()}) == 4
    writer = writer_of(run)
    (name,) = {host_of(worker)[0] for worker in training_workers()} - {host_of(writer)[0]}
    lost = name, 1  # Ray still sees the host by which the slice is reserved
    lose_host(cluster, *lost)
    driver.until(lambda: find_writer(run) not in (None, writer), 300, pause=0.2)
    step = run.step()
    driver.until_step(step + 20, 300)
    left = {host_of(worker) for worker in training_workers()}
    assert {slice_name for slice_name, _ in left} == {host_of(writer_of(run))[0]} != {lost[0]}
    assert len(left) == 2

    add_host(cluster, *lost)
    driver.until(lambda: len({host_of(worker) for worker in training_workers()}) == 4, 300, pause=1)
    driver.until(lambda: find_writer(run) is not None, 120)
    step = run.step()
    driver.until_step(step + 20, 300)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path is not None and not damaged and read_checkpoint(path).world_size == 4
    assert "there is room for 4 workers" in driver.output()
    ours, theirs = (
        {step: each["train/loss"] for step, each in one.records() if "train/loss" in each}
        for one in (run, reference)
    )
    assert sorted(ours) == list(range(1, len(ours) + 1)), "each step once"
    differences = [abs(ours[step] - theirs[step]) for step in range(1, COMPARED + 1)]
    print(f"two slices against torch: {max(differences):.1e}, {driver.output()}")
    assert max(differences) < 5e-5, differences

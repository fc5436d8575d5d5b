import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tracked_runs import (
    SHA256,
    described,
    has_ended,
    newest_sent,
    send_run,
    wait_until,
    write_steps,
)

from benchmarks.mlflow_server import MlflowServer, TroubledProxy, free_port
from bert_core.errors import UserError
from serving.registry import sqlite_uri
from workflows.runs.journal import METRIC_NAME, Journal
from workflows.runs.mlflow_run import RUN_KEY_TAG, RunSender, open_client
from workflows.runs.sender import SystemSampler, main, parse_gpu_line, verify_exactly_once
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    LOG_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    Tracker,
    note_throughput,
    read_json,
    summarize_tracking,
    without_machine_paths,
    write_specification,
)

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server(tmp_path_factory, store_template):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(store_template, folder / "server.db")
    server = MlflowServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def proxy(server):
    proxy = TroubledProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A sender that waits 3 s for an answer, not 30."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")


@pytest.fixture
def journal(tmp_path):
    with closing(Journal(tmp_path / JOURNAL_NAME)) as journal:
        yield journal


def track(uri, folder, **changes):
    return Tracker(
        folder, described(uri, folder, **changes), interval_seconds=0.2, system_interval_seconds=0.5
    )


def test_a_run_is_described_and_every_step_stands_there_once(tmp_path, journal, store_uri):
    (tmp_path / ARTIFACTS_NAME).mkdir()
    (tmp_path / ARTIFACTS_NAME / "settings.yaml").write_text("steps: 30\n")
    tracker = track(store_uri, tmp_path)
    write_steps(journal, range(1, 21))
    wait_until(lambda: newest_sent(tmp_path) == 20)  # while the run goes on
    write_steps(journal, range(21, 31))
    (tmp_path / ARTIFACTS_NAME / "figures").mkdir()
    (tmp_path / ARTIFACTS_NAME / "figures" / "loss.svg").write_text("<svg/>")
    summary = tracker.finish()
    assert (summary.unsent_records, summary.error) == (0, None)
    report = verify_exactly_once(tmp_path)
    assert report.correct and report.num_metrics == 63, report

    client = open_client(store_uri)
    run = client.get_run(summary.run_id)
    assert run.info.status == "FINISHED" and run.info.run_name == tmp_path.name
    assert run.data.params["optimizer.peak_learning_rate"] == "0.0001"
    assert run.data.tags["data.sha256"] == SHA256
    assert run.inputs.dataset_inputs[0].dataset.digest == SHA256[:8]
    assert {file.path for file in client.list_artifacts(summary.run_id)} == {
        "settings.yaml",
        "figures",
    }
    assert run.data.metrics["system/system_memory_usage_percentage"] > 0
    history = client.get_metric_history(summary.run_id, "train/loss")
    assert [metric.value for metric in history] == [1 / step for step in range(1, 31)]
    assert_no_machine_path(store_uri, summary.run_id, tmp_path)


def assert_no_machine_path(store_uri, run_id, folder):
    queries = {
        "params": "SELECT key, value FROM params WHERE run_uuid = ?",
        "tags": "SELECT key, value FROM tags WHERE run_uuid = ?",
        "inputs": "SELECT d.name, d.dataset_source FROM datasets d JOIN inputs i ON "
        "i.source_id = d.dataset_uuid WHERE i.destination_id = ?",
    }
    with closing(sqlite3.connect(store_uri.removeprefix("sqlite:///"))) as database:
        found = {
            name: database.execute(text, (run_id,)).fetchall() for name, text in queries.items()
        }
    assert all(found.values())
    for forbidden in (str(folder), str(Path.home()) + "/", str(PROJECT)):
        assert forbidden not in json.dumps(found), found
    assert ("text", "…/a.txt") in found["params"]


def test_a_resumed_run_sends_only_what_is_missing(tmp_path, journal, store_uri):
    write_specification(tmp_path, described(store_uri, tmp_path))
    write_steps(journal, range(1, 26))
    first = send_run(tmp_path, "KILLED")
    (tmp_path / STATE_NAME).unlink()  # another machine: the run is found by its key
    journal.cut_back(12)
    changed = {"optimizer.peak_learning_rate": "0.0002"}
    write_specification(tmp_path, described(store_uri, tmp_path, params=changed))
    write_steps(journal, range(13, 41))
    assert send_run(tmp_path).run_id == first.run_id
    assert verify_exactly_once(tmp_path).correct
    run = open_client(store_uri).get_run(first.run_id)
    assert run.data.params["optimizer.peak_learning_rate"] == "0.0001"
    assert run.data.tags["resumed.optimizer.peak_learning_rate"] == "0.0002"


def test_an_empty_twin_of_a_run_is_removed(tmp_path, journal, store_uri):
    write_specification(tmp_path, described(store_uri, tmp_path))
    write_steps(journal, range(1, 4))
    sender = RunSender(tmp_path)
    while sender.send_batch():
        pass
    client = open_client(store_uri)
    experiment_id = read_json(tmp_path / STATE_NAME)["experiment_id"]
    key = f"key of {tmp_path.name}"
    client.create_run(experiment_id, tags={RUN_KEY_TAG: key})  # a creation answered too late
    sender.finish("FINISHED")
    sender.close()
    runs = client.search_runs([experiment_id], f"tags.`{RUN_KEY_TAG}` = '{key}'")
    assert [run.info.run_id for run in runs] == [sender.run_id]


TRAINING = """
import os, signal, sys
from pathlib import Path
from workflows.runs.journal import Journal
from workflows.runs.tracker import JOURNAL_NAME, TrackedRun, Tracker
folder, uri = Path(sys.argv[1]), sys.argv[2]
tracker = Tracker(folder, TrackedRun(uri, "pretraining", "killed", "key of killed"))
journal = Journal(folder / JOURNAL_NAME)
for step in range(1, 501):
    journal.append(step, {"train/loss": 1 / step})
assert not [name for name in sys.modules if name.partition(".")[0] == "mlflow"]
print(tracker.process_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_sigkill_of_training_the_sender_sends_the_rest_and_goes(tmp_path, store_uri):
    process = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path), store_uri],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert process.returncode == -signal.SIGKILL
    sender_id = int(process.stdout)
    wait_until(lambda: has_ended(sender_id))
    assert verify_exactly_once(tmp_path).correct
    run_id = read_json(tmp_path / STATE_NAME)["run_id"]
    assert open_client(store_uri).get_run(run_id).info.status == "KILLED"


DYING_AT_THE_END = """
import os, signal, sys, threading
from pathlib import Path
from workflows.runs.journal import Journal
from workflows.runs.tracker import JOURNAL_NAME, TrackedRun, Tracker

folder, uri = Path(sys.argv[1]), sys.argv[2]
Journal(folder / JOURNAL_NAME).append(1, {"train/loss": 1.0})
tracker = Tracker(folder, TrackedRun(uri, "experiment", "run", "key"), interval_seconds=0.5)
threading.Timer(3.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
print(tracker.process_id, flush=True)
tracker.finish("FINISHED", timeout_seconds=60)
"""


@pytest.mark.slow
def test_a_sender_whose_parent_dies_while_it_finishes_does_not_try_for_ever(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", DYING_AT_THE_END, str(tmp_path), f"http://127.0.0.1:{free_port()}"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert process.returncode == -signal.SIGKILL
    sender_id = int(process.stdout)
    assert Path(f"/proc/{sender_id}").exists()
    wait_until(lambda: has_ended(sender_id))


@pytest.mark.slow
def test_with_a_troubled_server_nothing_is_lost_or_sent_twice(tmp_path, journal, proxy):
    """`delay 4` outlasts the sender's 3 s: the server commits what the client gave up."""
    tracker = track(proxy.uri, tmp_path)
    step = 0
    for mode in ("full", "swallow", "delay 4"):
        proxy.set_mode("pass")
        write_steps(journal, range(step + 1, step + 11))
        step += 10
        wait_until(lambda newest=step: newest_sent(tmp_path) == newest)
        errors = (tmp_path / LOG_NAME).read_text().count("\n")
        proxy.set_mode(mode)
        started = time.monotonic()
        write_steps(journal, range(step + 1, step + 31))
        step += 30
        assert time.monotonic() - started < 3.0
        wait_until(
            lambda before=errors: (tmp_path / LOG_NAME).read_text().count("\n") >= before + 2
        )
        assert newest_sent(tmp_path) < step
    proxy.set_mode("pass")
    summary = tracker.finish()
    assert (summary.unsent_records, summary.error) == (0, None)
    time.sleep(4)  # what is still on its way
    report = verify_exactly_once(tmp_path)
    assert report.correct and report.num_metrics == 120 * 2 + 12, report


def test_without_a_server_the_end_is_on_time_and_says_how_to_send(
    tmp_path, journal, store_uri, capsys
):
    tracker = track(f"http://127.0.0.1:{free_port()}", tmp_path)
    write_steps(journal, range(1, 21))
    wait_until(lambda: read_json(tmp_path / STATE_NAME).get("error"))
    started = time.monotonic()
    summary = tracker.finish(timeout_seconds=2.0)
    assert time.monotonic() - started < 30.0
    assert summary.unsent_records == 22 and "refused" in str(summary.error)

    specification = tmp_path / "tracking.json"  # the server is there again, at another address
    specification.write_text(
        json.dumps(json.loads(specification.read_text()) | {"tracking_uri": store_uri})
    )
    assert main(["send", str(tmp_path)]) == 0
    assert ": 0 records left" in capsys.readouterr().out
    assert verify_exactly_once(tmp_path).correct
    assert summarize_tracking(tmp_path).unsent_records == 0


def test_paths_are_cut_to_their_last_part_and_nothing_else_is():
    same = "s3://bucket/a/b https://h.org/x/y 0.9/0.999/1e-6 80/10/10 data/wiki/a.txt a / b docs://"
    assert without_machine_paths(same) == same
    text = "['/data/wiki/a.txt', \"/home/x/b\"] sqlite:////srv/m/mlflow.db from=/tmp/run_1/."
    cut = without_machine_paths(text)
    assert not [each for each in ("/data", "/home", "/tmp", "/srv") if each in cut]
    assert "…/a.txt" in cut


@pytest.mark.slow
def test_processes_may_race_for_a_fresh_store(tmp_path):
    path = tmp_path / "a b%20c?d=e;f'g#ü" / "mlflow.db"
    uri = sqlite_uri(path)
    command = [sys.executable, "-m", "workflows.runs.sender", "create", uri]
    racers = [subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [racer.wait(120) for racer in racers] == [0, 0]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert open_client(uri).create_experiment("first", "file:///nowhere")
    assert [each.name for each in tmp_path.iterdir()] == [path.parent.name]


@pytest.mark.parametrize(
    "changes", [{"dataset": 5}, {"tags": ["a"]}, {"tracking_uri": 5}, {"of a later release": 1}]
)
def test_a_damaged_description_of_a_run_is_named(tmp_path, changes):
    write_specification(tmp_path, described("sqlite:///a.db", tmp_path))
    path = tmp_path / SPECIFICATION_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=r"damaged description of a run.*tracking\.json"):
        RunSender(tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(Exception, match=r"no tracked run.*name the folder"):
        RunSender(tmp_path)


def test_a_sample_of_this_machine_has_names_mlflow_takes(tmp_path):
    sample = SystemSampler(os.getpid(), tmp_path).sample()
    assert all(METRIC_NAME.fullmatch(name) for name in sample)
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100
    assert sample["system/training_process_memory_megabytes"] > 1
    assert sample["system/disk_available_megabytes"] > 0


def test_a_process_that_has_gone_leaves_its_memory_out(tmp_path):
    sample = SystemSampler(2**22 + 1, tmp_path).sample()
    assert "system/training_process_memory_megabytes" not in sample


def test_a_line_of_nvidia_smi_becomes_metrics():
    values = parse_gpu_line("1, 87, 10240, 20480, 301.5")
    assert values["system/gpu_1_utilization_percentage"] == 87
    assert values["system/gpu_1_memory_usage_percentage"] == 50
    assert values["system/gpu_1_memory_usage_megabytes"] == 10240 * 2**20 / 1e6
    assert values["system/gpu_1_power_usage_watts"] == 301.5
    assert parse_gpu_line("0, [N/A], 1, 2, 3") == {}
    assert parse_gpu_line("No devices were found") == {}


def test_the_speed_of_a_run_is_sampled_while_it_is_fresh(tmp_path):
    figures = {"step": 3, "tokens_per_second": 1234.5, "padding_share": 0.0, "mfu": 0.4}
    note_throughput(tmp_path, {"messages": []})
    assert "system/training_tokens_per_second" not in SystemSampler(os.getpid(), tmp_path).sample()
    note_throughput(tmp_path, figures)
    sample = SystemSampler(os.getpid(), tmp_path).sample()
    assert sample["system/training_tokens_per_second"] == 1234.5
    assert sample["system/training_mfu"] == 0.4
    old = time.time() - 3600
    os.utime(tmp_path / "throughput.json", (old, old))
    assert "system/training_tokens_per_second" not in SystemSampler(os.getpid(), tmp_path).sample()


@pytest.mark.slow
def test_a_server_killed_and_started_again_has_every_step_once(tmp_path, store_template):
    shutil.copy(store_template, tmp_path / "server.db")
    server = MlflowServer(tmp_path)
    server.start()
    folder = tmp_path / "run"
    journal = Journal(folder / JOURNAL_NAME)
    tracker = track(server.uri, folder)
    try:
        for start in range(1, 301, 100):
            write_steps(journal, range(start, start + 50), seconds=0.05)
            wait_until(lambda: newest_sent(folder) > 0)
            server.kill()
            write_steps(journal, range(start + 50, start + 100), seconds=0.05)
            server.start()
        summary = tracker.finish()
        assert summary.unsent_records == 0, summary
        assert verify_exactly_once(folder).correct
    finally:
        server.kill()

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tracked_runs import has_ended, newest_sent, wait_until
from tracked_sweeps import Sweep

from benchmarks.mlflow_server import MlflowServer, TroubledProxy, free_port
from workflows.runs.journal import Journal
from workflows.runs.mlflow_run import open_client
from workflows.runs.sender import main
from workflows.runs.sweep_tracker import TrackedTrial, read_trials, sweep_status
from workflows.runs.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    LOG_NAME,
    SPECIFICATION_NAME,
    STATE_NAME,
    Tracker,
    read_json,
)

PROJECT = Path(__file__).parents[3]


def test_a_sweep_is_a_run_with_a_run_below_it_for_each_trial(tmp_path, store_uri):
    sweep = Sweep(tmp_path, store_uri, "whole")
    tracker = sweep.track()
    scores = Journal(sweep.folder / JOURNAL_NAME)
    for name in ("a", "b"):
        sweep.begin(tracker, name)
        sweep.write(name, range(1, 21))
    wait_until(lambda: newest_sent(sweep.trial("a")) == newest_sent(sweep.trial("b")) == 20)
    assert sweep.runs()["a"].info.status == "RUNNING"  # while the trials go on
    sweep.write("a", range(21, 31))
    (sweep.trial("a") / ARTIFACTS_NAME / "settings.yaml").write_text("steps: 30\n")
    tracker.end(sweep.trial("a"), "FINISHED")
    scores.append(1, {"trial_score": 0.5, "best_score": 0.5})
    tracker.end(sweep.trial("b"), "FAILED")
    wait_until(lambda: sweep.runs()["a"].info.status == "FINISHED")
    assert sweep.runs()["sweep"].info.status == "RUNNING"
    sweep.begin(tracker, "c")
    sweep.write("c", range(1, 4))
    scores.append(2, {"trial_score": 0.4, "best_score": 0.5})
    (sweep.folder / ARTIFACTS_NAME / "report.html").write_text("<html/>")
    summary = tracker.finish()

    assert (summary.unsent_records, summary.error) == (0, None)
    sweep.assert_complete("a", "b", "c")
    runs = sweep.runs()
    assert {name: run.info.status for name, run in runs.items()} == {
        "sweep": "FINISHED",
        "a": "FINISHED",
        "b": "FAILED",
        "c": "KILLED",  # never ended
    }
    assert runs["sweep"].info.run_id == summary.run_id == tracker.run_id_of(sweep.folder)
    assert runs["b"].info.run_id == tracker.run_id_of(sweep.trial("b"))
    client = open_client(store_uri)
    files = {
        name: [file.path for file in client.list_artifacts(run.info.run_id)]
        for name, run in runs.items()
    }
    assert files == {"sweep": ["report.html"], "a": ["settings.yaml"], "b": [], "c": []}
    assert runs["sweep"].data.metrics["best_score"] == 0.5
    of_machine = "system/system_memory_usage_percentage"
    assert [name for name, run in runs.items() if of_machine in run.data.metrics] == ["sweep"]
    tags = read_json(sweep.trial("a") / SPECIFICATION_NAME)["tags"]
    assert "mlflow.parentRunId" not in tags  # a registered version takes its tags from there


@pytest.mark.slow
def test_a_killed_sender_is_replaced_while_the_sweep_goes_on(tmp_path, store_uri):
    sweep = Sweep(tmp_path, store_uri, "sender")
    tracker = sweep.track()
    sweep.begin(tracker, "a")
    sweep.write("a", range(1, 31))
    wait_until(lambda: newest_sent(sweep.trial("a")) > 0)
    first = tracker.process_id
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: has_ended(first))
    sweep.write("a", range(31, 51))
    tracker.end(sweep.trial("a"), "FINISHED")
    sweep.begin(tracker, "b")
    sweep.write("b", range(1, 11))
    assert tracker.process_id != first
    wait_until(lambda: newest_sent(sweep.trial("b")) == 10)
    wait_until(lambda: sweep.runs()["a"].info.status == "FINISHED")
    os.kill(tracker.process_id, signal.SIGKILL)  # and once more, when only the end is left
    tracker.end(sweep.trial("b"), "FINISHED")
    assert tracker.finish().unsent_records == 0
    sweep.assert_complete("a", "b")


DRIVER = """
import os, signal, sys, time
from pathlib import Path
sys.path.append("tests/workflows")
from tracked_sweeps import Sweep
from tracked_runs import newest_sent, wait_until
from workflows.runs.journal import Journal
from workflows.runs.tracker import JOURNAL_NAME

sweep = Sweep(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
tracker = sweep.track()
Journal(sweep.folder / JOURNAL_NAME).append(1, {"best_score": 0.5})
for name in ("a", "b"):
    sweep.begin(tracker, name)
    sweep.write(name, range(1, 31))
tracker.end(sweep.trial("a"), "FINISHED")
wait_until(lambda: newest_sent(sweep.trial("b")) == 30)
sweep.write("b", range(31, 201))
assert not [name for name in sys.modules if name.partition(".")[0] == "mlflow"], "too slow here"
print(tracker.process_id, flush=True)
if "sender" in sys.argv[3]:
    os.kill(tracker.process_id, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", [pytest.param("driver", marks=pytest.mark.slow), "driver and sender"]
)
def test_after_a_sigkill_the_same_runs_go_on(tmp_path, store_uri, killed):
    sweep = Sweep(tmp_path, store_uri, killed)
    arguments = [str(tmp_path), store_uri, killed]
    process = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert process.returncode == -signal.SIGKILL
    if killed == "driver":  # what was written is sent, then the sender goes
        wait_until(lambda: has_ended(int(process.stdout)))
        assert newest_sent(sweep.trial("b")) == 200
        assert {run.info.status for run in sweep.runs().values()} == {"FINISHED", "KILLED"}
    first = {name: run.info.run_id for name, run in sweep.runs().items()}
    assert first.keys() == {"sweep", "a", "b"}

    tracker = sweep.track()
    Journal(sweep.trial("b") / JOURNAL_NAME).cut_back(25)
    sweep.begin(tracker, "b")
    sweep.write("b", range(26, 211))
    tracker.end(sweep.trial("b"), "FINISHED")
    sweep.begin(tracker, "a")  # it had ended, as the driver knows by its results
    tracker.end(sweep.trial("a"), "FINISHED")
    Journal(sweep.folder / JOURNAL_NAME).append(2, {"best_score": 0.6})
    summary = tracker.finish()
    assert (summary.unsent_records, summary.error) == (0, None)
    assert {name: run.info.run_id for name, run in sweep.runs().items()} == first
    assert {run.info.status for run in sweep.runs().values()} == {"FINISHED"}
    sweep.assert_complete("a", "b")


@pytest.mark.slow
def test_what_is_missed_without_mlflow_is_sent_later(tmp_path, store_uri, capsys):
    away = Sweep(tmp_path / "storage", f"http://127.0.0.1:{free_port()}", "away")
    started = time.monotonic()
    tracker = away.track()
    for name, status in (("a", "FINISHED"), ("b", "FAILED"), ("c", None)):
        away.begin(tracker, name)
        away.write(name, range(1, 21))
        if status is not None:
            tracker.end(away.trial(name), status)
    assert time.monotonic() - started < 3.0
    assert tracker.run_id_of(away.trial("a")) is None
    wait_until(lambda: read_json(away.folder / STATE_NAME).get("error"))
    started = time.monotonic()
    summary = tracker.finish("FAILED", timeout_seconds=2.0)
    assert time.monotonic() - started < 30.0
    assert summary.unsent_records == 3 * 22 and "refused" in str(summary.error)
    assert summary.run_id is None

    # The storage moves, and the server is there again at another address.
    away.storage.rename(tmp_path / "moved")
    sweep = Sweep(tmp_path / "moved", store_uri, "away")
    for folder in (sweep.folder, *map(sweep.trial, "abc")):
        specification = folder / SPECIFICATION_NAME
        content = json.loads(specification.read_text()) | {"tracking_uri": store_uri}
        specification.write_text(json.dumps(content))
    command = [sys.executable, "-m", "workflows.runs.sender", "send", str(sweep.folder)]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and ": 0 records left" in result.stdout, result.stderr
    sweep.assert_complete("a", "b", "c")
    statuses = {name: run.info.status for name, run in sweep.runs().items()}
    assert statuses == {"sweep": "FAILED", "a": "FINISHED", "b": "FAILED", "c": "KILLED"}

    assert main(["verify", str(sweep.folder)]) == 0
    assert capsys.readouterr().out.count("TrackingReport") == 4
    with (sweep.trial("b") / JOURNAL_NAME).open("a") as journal:
        journal.write('{"step":21,"time":1.0,"metrics":{"train/loss":1.0}}\n')
    assert main(["verify", str(sweep.folder)]) == 1
    assert "missing=[(21, 'train/loss')]" in capsys.readouterr().out


def test_the_trials_of_an_earlier_start_died_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Tracker, "revive", lambda _: None)  # the files alone
    sweep = Sweep(tmp_path, "sqlite:///nowhere", "files")
    tracker = sweep.track()
    for name in ("a", "b", "gone"):
        sweep.begin(tracker, name)
    tracker.end(sweep.trial("a"), "FINISHED")
    tracker.end(sweep.trial("unknown"), "FINISHED")
    a, b, gone = map(sweep.trial, ("a", "b", "gone"))
    assert read_trials(sweep.folder) == {
        a: TrackedTrial("FINISHED", 1),
        b: TrackedTrial(None, 1),
        gone: TrackedTrial(None, 1),
    }
    assert sweep_status(sweep.folder) == "KILLED"  # until the driver has said otherwise
    shutil.rmtree(gone)
    again = sweep.track()
    assert read_trials(sweep.folder) == {a: TrackedTrial("FINISHED"), b: TrackedTrial("KILLED")}
    sweep.begin(again, "b")
    sweep.begin(again, "a")
    assert read_trials(sweep.folder) == {a: TrackedTrial(None, 2), b: TrackedTrial(None, 2)}
    assert str(tmp_path) not in (sweep.folder / "tracking_trials.json").read_text()


@pytest.mark.parametrize("name", ["runs", "sweeps", "sweeps/sweep/tracking_trials.json/file"])
def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    sweep = Sweep(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}", "unwritable")
    tracker = sweep.track()
    sweep.begin(tracker, "a")
    tracker.end(sweep.trial("a"), "FINISHED")
    summary = tracker.finish(timeout_seconds=0.0)
    assert name.partition("/file")[0] in str(summary.error), summary
    assert summary.run_id is None


def test_a_file_that_could_not_be_written_once_is_no_lasting_error(tmp_path):
    sweep = Sweep(tmp_path, f"sqlite:///{tmp_path / 'mlflow.db'}", "later")
    tracker = sweep.track()
    written = sweep.folder / "tracking_trials.json"
    content = written.read_bytes() if written.is_file() else None
    written.unlink(missing_ok=True)
    written.mkdir()
    sweep.begin(tracker, "a")
    assert written.is_dir()
    written.rmdir()
    if content is not None:
        written.write_bytes(content)
    assert tracker.finish(timeout_seconds=0.0).error is None
    assert read_trials(sweep.folder) == {sweep.trial("a"): TrackedTrial("KILLED")}


@pytest.mark.slow
def test_a_troubled_server_delays_no_sweep(tmp_path, store_template, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    shutil.copy(store_template, tmp_path / "server.db")
    server = MlflowServer(tmp_path)
    server.start()
    proxy = TroubledProxy(server.port)
    sweep = Sweep(tmp_path, proxy.uri, "troubled")
    try:
        tracker = sweep.track()
        for name in ("refuse", "full", "swallow", "delay 4"):
            proxy.set_mode("pass")
            sweep.begin(tracker, name)
            sweep.write(name, range(1, 11))
            wait_until(lambda trial=name: newest_sent(sweep.trial(trial)) == 10)
            errors = (sweep.folder / LOG_NAME).read_text().count("\n")
            proxy.set_mode(name)
            started = time.monotonic()
            sweep.write(name, range(11, 41))
            tracker.end(sweep.trial(name), "FINISHED")
            assert time.monotonic() - started < 3.0
            wait_until(
                lambda before=errors: (sweep.folder / LOG_NAME).read_text().count("\n") > before
            )
        proxy.set_mode("pass")
        summary = tracker.finish(timeout_seconds=120.0)
        assert (summary.unsent_records, summary.error) == (0, None)
        time.sleep(4)  # what is still on its way
        sweep.assert_complete("refuse", "full", "swallow", "delay 4")
        assert {run.info.status for run in sweep.runs().values()} == {"FINISHED"}
    finally:
        proxy.close()
        server.kill()

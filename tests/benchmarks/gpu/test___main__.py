import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.jobs import OUT_OF_TIME, Job
from benchmarks.gpu.ledger import Ledger

WRITE = "import sys, json; open(sys.argv[1], 'w').write(json.dumps({}))"
SLEEP = "import time; print('asleep'); time.sleep(60)"


def job(name, code, *, expected=0.001, limit=1.0):
    return Job(name, ("-S", "-c", code, "{json}", "{folder}"), expected, limit)


def writing(name, results="{'value': 3}", before="", **minutes):
    return job(name, f"{before}\n{WRITE.format(results)}", **minutes)


def run(jobs, folder, seconds=60.0):
    """One call, as `main` makes it; what became of each job."""
    folder.mkdir(exist_ok=True)
    ledger = Ledger(folder)
    end = time.monotonic() + seconds
    gpu.run_jobs(jobs, ledger, seconds_left=lambda: end - time.monotonic())
    return {each.name: ledger.status(each.name) for each in jobs}


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid, seconds=5.0):
    end = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def test_one_that_fails_and_one_that_never_ends_stop_no_other(tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    child = f"subprocess.Popen([{sys.executable!r}, '-S', '-c', {deaf!r}]).pid"
    jobs = [
        job("broken", "import sys; print('begun'); sys.exit('no such kernel | here')"),
        job("endless", f"import subprocess\nprint({child}, flush=True)\n{SLEEP}", limit=0.03),
        job("silent", "pass"),
        writing("good"),
    ]
    assert run(jobs, tmp_path) == {
        "broken": "failed",
        "endless": "timed out",
        "silent": "no results",
        "good": "finished",
    }
    ledger = Ledger(tmp_path)
    assert ledger.jobs["good"]["results"] == {"value": 3}
    assert ledger.jobs["broken"]["exit_code"] == 1
    # What the endless one had started is ended too: it would keep the card's memory.
    assert gone(int(ledger.jobs["endless"]["log_tail"][-2]))
    summary = ledger.write_summary(jobs, {"features": "needs --data"})
    assert "| broken | failed | 0.0 | `no such kernel / here` |" in summary
    assert "| good | finished | 0.0 | value 3 |" in summary
    assert "| features | left out | | needs --data |" in summary
    assert gpu.exit_code(jobs, ledger) == 1


def test_a_call_goes_on_where_the_last_one_stopped(tmp_path):
    count = "open(sys.argv[2], 'a').write('x')"
    once = f"import sys; {count}"
    again = (
        f"import sys, os; {count}; done = os.path.getsize(sys.argv[2])\n"
        f"open(sys.argv[1], 'w').write('{{\"done\": %d}}' % done)\n"
        f"sys.exit(0 if done == 2 else {OUT_OF_TIME})"
    )
    jobs = [writing("once", before=once), job("again", again)]
    assert run(jobs, tmp_path) == {"once": "finished", "again": "unfinished"}
    assert gpu.exit_code(jobs, Ledger(tmp_path)) == OUT_OF_TIME
    # On another machine all.json is all there is.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "all.json").write_bytes((tmp_path / "all.json").read_bytes())
    (elsewhere / "again").write_text("x")
    assert run(jobs, elsewhere) == {"once": "finished", "again": "finished"}
    assert (elsewhere / "again").read_text() == "xx"
    assert not (elsewhere / "once").exists()  # not repeated
    assert json.loads((elsewhere / "once.json").read_text()) == {"value": 3}
    assert gpu.exit_code(jobs, Ledger(elsewhere)) == 0


def test_results_that_say_that_they_are_not_whole_are_not_finished(tmp_path):
    jobs = [writing("a", "{'unfinished': True}"), writing("b", "{'finished': False}")]
    assert set(run(jobs, tmp_path).values()) == {"unfinished"}


def test_no_job_is_begun_that_would_not_fit(tmp_path):
    jobs = [writing("long", expected=2.0, limit=2.0), writing("short")]
    assert run(jobs, tmp_path, seconds=30) == {"long": None, "short": "finished"}
    assert not (tmp_path / "long.log").exists()
    assert gpu.exit_code(jobs, Ledger(tmp_path)) == OUT_OF_TIME


def test_one_that_the_end_of_the_call_cuts_off_gets_all_its_time_in_the_next(tmp_path):
    slow = job("slow", SLEEP, limit=0.5)
    begin = time.monotonic()
    assert run([slow], tmp_path, seconds=1.5) == {"slow": "cut off"}
    assert time.monotonic() - begin < 10
    ledger = Ledger(tmp_path)
    assert ledger.jobs["slow"]["log_tail"][-1] == "asleep"
    assert ledger.needed_seconds(slow) == 30
    # It comes after those that were not begun yet.
    add_to_order = f"open({str(tmp_path / 'order')!r}, 'a').write"
    jobs = [writing(name, before=f"{add_to_order}('{name} ')") for name in ("slow", "new")]
    run(jobs, tmp_path, seconds=90)
    assert (tmp_path / "order").read_text() == "new slow "


def test_a_runner_that_is_told_to_end_ends_its_job(tmp_path):
    code = f"import os; print(os.getpid(), flush=True)\n{SLEEP}"
    script = f"""
import sys
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.jobs import Job
gpu.all_jobs = lambda places: ([Job("sleep", ("-S", "-c", {code!r}), 0.1, 1.0)], {{}})
sys.exit(gpu.main(["--rehearse", "--out", {str(tmp_path)!r}]))
"""
    runner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    log, end = tmp_path / "sleep.log", time.monotonic() + 30
    while not (log.exists() and "asleep" in log.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    runner.terminate()
    assert runner.wait(10) == 143
    assert gone(int(log.read_text().splitlines()[1]))


def test_results_are_brought_to_another_folder_after_each_job(tmp_path):
    ledger = Ledger(tmp_path, tmp_path / "copy")
    gpu.run_jobs([writing("good")], ledger, seconds_left=lambda: 60)
    text = (tmp_path / "copy" / "all.json").read_text()
    assert json.loads(text)["jobs"]["good"]["status"] == "finished"
    assert str(tmp_path) not in text


def test_without_a_gpu_it_says_so_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_list_says_what_is_left_and_what_is_missing(tmp_path, capsys):
    (tmp_path / "all.json").write_text(
        json.dumps(
            {
                "machines": [],
                "jobs": {
                    "pretraining-base-128-full": {
                        "status": "finished",
                        "attempts": 1,
                        "results": None,
                    }
                },
            }
        )
    )
    assert gpu.main(["--out", str(tmp_path), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        each.startswith("pretraining-base-128-full ") and "finished" in each for each in lines
    )
    assert any(
        each.startswith("pretraining-large-512-full ") and "not begun" in each for each in lines
    )
    assert any(each.startswith("encoder ") and "needs --shards" in each for each in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--only pretraining-base-128-ful", "did you mean pretraining-base-128-full"),
        ("--only features", "needs --data"),
        ("--data nowhere", "no such folder: --data nowhere"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(tmp_path, capsys, words, said):
    assert gpu.main(["--out", str(tmp_path), "--list", *words.split()]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_file_that_is_something_else_is_not_taken_for_results(tmp_path, capsys):
    (tmp_path / "all.json").write_text("[]")
    assert gpu.main(["--out", str(tmp_path), "--list"]) == 2
    assert "no results of benchmarks.gpu" in capsys.readouterr().err

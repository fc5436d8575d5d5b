"""All measurements on a GPU by one command: jobs, the ledger, headlines."""

import importlib
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_pretraining import small_task
from small_tasks import write_data, write_encoder

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.jobs import ABLATED, FIRST, MOST_MINUTES, OUT_OF_TIME, Job, Places, all_jobs
from benchmarks.gpu.ledger import Ledger, headline
from benchmarks.pretraining.ablation import ablation_rows


@pytest.fixture
def places(tmp_path):
    """All that jobs can be made of."""
    for task, folder in (("mrpc", "glue/MRPC"), ("squad", "squad"), ("sst2", "glue/SST-2")):
        write_data(task, tmp_path / "data" / folder)
    (tmp_path / "data" / "text").mkdir()
    (tmp_path / "data" / "text" / "some.txt").write_text("A paragraph.\n")
    write_encoder(tmp_path / "encoder")
    (tmp_path / "shards").mkdir()
    return Places(tmp_path / "data", tmp_path / "encoder", tmp_path / "shards")


@pytest.mark.parametrize("rehearsal", [False, True])
def test_every_command_line_is_one_that_its_benchmark_takes(places, tmp_path, rehearsal):
    jobs, missing = all_jobs(
        replace(places, rehearsal=rehearsal, device="cpu" if rehearsal else "cuda")
    )
    assert not missing
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        _, flag, module, *words = job.command(tmp_path / "out", 300)
        assert flag == "-m"
        assert not any("{" in word for word in words), words
        command = (
            f"{module}.__main__" if hasattr(importlib.import_module(module), "__path__") else module
        )
        options = importlib.import_module(command).parse_arguments(words)
        assert options.json == tmp_path / "out" / f"{job.name}.json"
        assert options.device == ("cpu" if rehearsal else "cuda")
        assert 0 < job.expected_minutes <= job.limit_minutes <= MOST_MINUTES < 8


def test_what_lacks_data_is_told():
    jobs, missing = all_jobs(Places())
    assert {job.name.split("-")[0] for job in jobs} == {"pretraining", "ablation"}
    assert set(missing) >= {"finetuning-mrpc", "finetuning-squad", "features", "loading", "encoder"}


def test_pretraining_is_measured_at_all_six_shapes():
    names = [job.name for job in all_jobs(Places())[0] if job.name.startswith("pretraining")]
    assert len(names) == 6
    for size, length in (("base", 128), ("base", 512), ("large", 512)):
        for lengths in ("full", "natural"):
            assert f"pretraining-{size}-{length}-{lengths}" in names


def test_the_vocabulary_is_that_of_the_shards_where_no_encoder_is_given(places):
    assert Places(shards=places.encoder).tokenizer == places.encoder
    assert Places(encoder=places.shards).tokenizer is None  # an empty folder


def test_the_smallest_text_is_read(places):
    (places.data / "text" / "a-large.txt.xz").write_bytes(b"x" * 1000)
    (features,) = [job for job in all_jobs(places)[0] if job.name == "features"]
    assert str(places.data / "text" / "some.txt") in features.arguments


def test_what_the_goals_are_about_comes_first(places):
    names = [job.name for job in all_jobs(places)[0]]
    assert set(names[: len(FIRST)]) == set(FIRST)


def test_a_rehearsal_on_a_gpu_has_all_of_its_jobs(places):
    names = [job.name for job in all_jobs(replace(places, rehearsal=True))[0]]
    assert names == [job.name for job in all_jobs(places)[0]]


def test_only_what_there_is_can_be_left_out():
    names = " ".join(ABLATED).split()
    assert len(set(names)) == len(names)
    assert set(names) <= ablation_rows(small_task()).keys()


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["finetuning-mrpc-cpu", "features-cpu"])
def test_the_rate_and_the_ratio_of_results_that_are_kept(name):
    results = json.loads((RESULTS / f"{name}.json").read_text())
    told = headline(results)
    ratio = results["ratio"] if "ratio" in results else results["ratios"]["transformers"]
    assert f"{ratio:.2f} times as fast as transformers" in told


ARM = {"mfu": 0.5, "tokens_per_second": 700_000.0}
ARMS = {
    "ours, plain": ARM | {"tokens_per_second": 500_000.0},
    "ours, fast": ARM,
    "transformers": ARM | {"ratio": 3.0},
    "transformers, compiled": ARM | {"ratio": 1.6},
}
ENCODER = {
    "pretraining": {"step": 2000, "tokens": 10**8, "heldout": [{"masked_token_loss": 2.5}]},
    "finetuning": {"sst2": {"compared": {"pre-trained": 0.85, "untrained": 0.8}}},
}


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        (
            {"benchmark": "pretraining", "arms": ARMS},
            ["700,000 tokens/s", "50.0%", "1.60 times as fast as transformers, compiled"],
        ),
        ({"benchmark": "encoder_run", **ENCODER}, ["2.500", "sst2 0.850", "0.800"]),
        ({"tokens": 5, "rate": {"median": 2.5}, "is": True}, ["tokens 5", "rate.median 2.5"]),
        ({"benchmark": "pretraining", "unfinished": True}, ["incomplete results"]),
    ],
    ids=["pretraining", "encoder", "unknown", "broken"],
)
def test_a_headline_has_the_figures_that_matter(results, shown):
    told = headline(results)
    assert not [each for each in shown if each not in told]


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
    # It comes after those that were not started yet.
    add_to_order = f"open({str(tmp_path / 'order')!r}, 'a').write"
    jobs = [writing(name, before=f"{add_to_order}('{name} ')") for name in ("slow", "new")]
    run(jobs, tmp_path, seconds=90)
    assert (tmp_path / "order").read_text() == "new slow "


@pytest.mark.slow
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
        line.startswith("pretraining-base-128-full ") and "finished" in line for line in lines
    )
    assert any(
        line.startswith("pretraining-large-512-full ") and "not started" in line for line in lines
    )
    assert any(line.startswith("encoder ") and "needs --shards" in line for line in lines)


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

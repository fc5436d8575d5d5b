import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from encoder_corpus import write_all

from benchmarks.encoder_run import __main__ as encoder_run
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder

BARE_MACHINE = Path(__file__).parents[1] / "bare_machine.py"
OPTIONS = (
    "--preset tiny --step_slots 128 --sequence_length 32 --steps 40 --heldout_rows 32 --epochs 2 "
    "--examples 16 --threads 1"
)
OF_TIME = {"seconds", "evaluation_seconds"}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("text"))


@pytest.fixture(autouse=True)
def as_before():
    """The command sets these for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def command(places, folder, *words):
    shards, glue = places
    options = {"shards": shards, "glue": glue, "out": folder / "out", "json": folder / "run.json"}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [*OPTIONS.split(), *given, *map(str, words)]


def results_in(folder):
    return json.loads((folder / "run.json").read_text())


def without_times(found):
    if isinstance(found, dict):
        return {name: without_times(v) for name, v in found.items() if name not in OF_TIME}
    return [without_times(each) for each in found] if isinstance(found, list) else found


def start_bare(arguments, folder):
    """The command as a process on a machine that has little installed."""
    lines = json.dumps([["benchmarks.encoder_run", *arguments]])
    root = str(Path(encoder_run.__file__).parents[2])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(BARE_MACHINE), lines],
            env=os.environ | {"PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def test_killed_on_a_bare_machine_it_comes_to_the_same(places, tmp_path):
    """Without Ray, MLflow, Arrow, scikit-learn and whatever else a GPU's machine lacks."""
    bare = tmp_path / "bare"
    bare.mkdir()
    arguments = command(places, bare, "--checkpoint_minutes", 0)
    killed = start_bare(arguments, bare)
    end = time.monotonic() + 120
    while not list((bare / "out" / "checkpoints").glob("step-0000001?")):
        assert killed.poll() is None and time.monotonic() < end, (bare / "log").read_text()
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    assert results_in(bare)["pretraining"]["step"] < 40
    assert start_bare(arguments, bare).wait(240) == 0, (bare / "log").read_text()
    log = (bare / "log").read_text()
    assert "going on from step 1" in log and "mrpc: f1" in log
    whole = tmp_path / "whole"
    assert encoder_run.main(command(places, whole)) == 0
    found, expected = without_times(results_in(bare)), without_times(results_in(whole))
    found.pop("surroundings"), expected.pop("surroundings")
    assert found == expected
    assert not (bare / "out" / "checkpoints").exists()
    weights = [
        load_model_folder(each / "out" / "encoder")[1].state_dict() for each in (bare, whole)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_finished_run_is_not_repeated_and_takes_more_seeds(places, tmp_path, monkeypatch):
    assert encoder_run.main(command(places, tmp_path, "--tasks", "sst2")) == 0
    before = results_in(tmp_path)
    monkeypatch.setattr(encoder_run, "Pretraining", None)
    assert encoder_run.main(command(places, tmp_path, "--tasks", "sst2", "--seeds", 0, 1)) == 0
    after = results_in(tmp_path)
    assert after["pretraining"] == before["pretraining"]
    for arm, (first, *more) in after["finetuning"]["sst2"]["arms"].items():
        assert [first] == before["finetuning"]["sst2"]["arms"][arm]
        assert [each["seed"] for each in more] == [1]


def test_a_call_that_is_out_of_time_says_so(places, tmp_path, capsys):
    assert encoder_run.main(command(places, tmp_path, "--minutes", 0)) == 130
    assert "the time is up; the same command goes on" in capsys.readouterr().out
    assert results_in(tmp_path)["pretraining"]["step"] == 1
    calls = 0
    while encoder_run.main(command(places, tmp_path, "--minutes", 0.02)) != 0:
        calls += 1
        assert calls < 60
    assert {name: len(stage["arms"]) for name, stage in results_in(tmp_path)["finetuning"].items()}


def test_the_encoder_comes_in_pieces_from_another_machine(places, tmp_path):
    pieces = ("--pieces", tmp_path / "pieces", "--tasks", "mrpc")
    words = command(places, tmp_path, *pieces)
    assert encoder_run.main([*words, "--seeds", "0"]) == 0
    (tmp_path / "out").rename(tmp_path / "left_behind")
    assert encoder_run.main([*words, "--seeds", "1"]) == 0
    found = results_in(tmp_path)
    assert found["encoder_was_rounded_to"] == "float16"
    assert [each["seed"] for each in found["finetuning"]["mrpc"]["arms"]["untrained"]] == [0, 1]


def test_an_encoder_that_is_gone(places, tmp_path):
    words = command(places, tmp_path, "--tasks", "mrpc")
    assert encoder_run.main(words) == 0
    (tmp_path / "out").rename(tmp_path / "left_behind")
    with pytest.raises(UserError, match="its encoder is not here"):
        encoder_run.main([*words, "--seeds", "1"])


def test_results_of_other_settings_are_left_alone(places, tmp_path):
    encoder_run.main(command(places, tmp_path, "--minutes", 0))
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UserError, match="results of other settings"):
        encoder_run.main(command(places, tmp_path, "--peak_learning_rate", 0.1))
    assert (tmp_path / "run.json").read_bytes() == before


def test_no_path_of_this_machine_is_in_the_results(places, tmp_path):
    encoder_run.main(command(places, tmp_path, "--minutes", 0))
    assert str(tmp_path) not in (tmp_path / "run.json").read_text()


def test_a_gpu_that_is_not_there(places, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU"):
        encoder_run.main(command(places, tmp_path, "--device", "cuda"))


def test_what_is_needed_to_train(capsys):
    with pytest.raises(SystemExit):
        encoder_run.main(["--json", "run.json", "--shards", "shards"])
    assert "--glue is needed" in capsys.readouterr().err


def test_the_picture_is_drawn_from_results(places, tmp_path):
    encoder_run.main(command(places, tmp_path, "--minutes", 0))
    words = ["--json", str(tmp_path / "run.json"), "--plot", str(tmp_path / "picture.svg")]
    assert encoder_run.main(words) == 0
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")

"""Each benchmark of serving, small: real servers, real clients."""

import dataclasses
import json
import random
import sys

import pytest
from small_tasks import WORDS, write_data, write_encoder

from benchmarks import served, served_squad, serving, serving_overload
from benchmarks.serving_kinds import INT8, UVICORN, kinds
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.task import add_task_head


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Sets the command line: small texts, a small encoder."""
    encoder = write_encoder(tmp_path / "encoder")
    choose = random.Random(3)
    lines = [" ".join(choose.choices(WORDS, k=220)) for _ in range(serving.TEXTS + 20)]
    (tmp_path / "paragraphs.txt").write_text("\n".join(lines))

    def give(*more):
        line = ["benchmark", "--text", tmp_path / "paragraphs.txt", "--model", encoder]
        line += ["--work", tmp_path / "work", "--json", tmp_path / "results.json", *more]
        monkeypatch.setattr(sys, "argv", [str(each) for each in line])
        return tmp_path / "results.json"

    return give


def stand_in_for_environment(kind, work):
    """This environment, which has what the peer needs, as that of its own."""
    folder = served.environment_of(kind, work)
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / ".installed").write_text("\n".join(kind.packages))


@pytest.mark.slow
def test_ours_beside_a_peer(command, tmp_path, capsys):
    stand_in_for_environment(kinds()["pipeline"], tmp_path / "work")
    path = command("--servers", UVICORN, INT8, "pipeline", "--seconds", "0.3", "--rounds", "2")
    serving.main()
    result = json.loads(path.read_text())
    assert len(result["cells"]) == 9
    for name, cell in result["cells"].items():
        assert list(cell) == [UVICORN, INT8, "pipeline"]
        for each in cell.values():
            assert each["requests"] > 0 and len(each["cpu_ms_of_rounds"]) == 2
            assert 0 < each["p50_ms"] <= each["p99_ms"] and each["cpu_ms"] > 0
        mine, theirs = (cell[each]["cpu_ms_of_rounds"] for each in (UVICORN, "pipeline"))
        wanted = sum(one / other for one, other in zip(mine, theirs, strict=True)) / 2
        assert result["ratios"][name][UVICORN] == pytest.approx(wanted)
    assert all(each[-1] > 50e6 for each in result["resident_bytes"].values())
    assert str(tmp_path) not in path.read_text()
    assert "ready in" in capsys.readouterr().out


def test_a_server_that_answers_otherwise_is_not_measured(tmp_path):
    folder = serving.write_classifiers(write_encoder(tmp_path / "encoder"), tmp_path)[UVICORN]
    server = served.Served(kinds()[UVICORN], folder, tmp_path)
    try:
        with pytest.raises(AssertionError, match="ours"):
            server.wait("cat", {"negative": 7.0, "positive": 7.0}, tolerance=0.1)
        right = serving.offline_scores(folder, "cat")
        server.wait("cat", right, tolerance=serving.ROUNDING)
        before = server.processor_seconds()
        assert server.processor_seconds_since(before) < 1 and server.resident_bytes > 50e6
    finally:
        server.end()
    assert not server.processor_seconds()


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = served.Served(kinds()[UVICORN], tmp_path / "nothing", tmp_path)
    with pytest.raises(RuntimeError, match=r"did not start: error: .*nothing"):
        server.wait("cat", {}, tolerance=0)
    server.end()


@pytest.mark.slow
def test_overload_is_refused_and_the_rate_goes_on(command, tmp_path, monkeypatch):
    write_encoder(tmp_path / "encoder", layers=16)  # of one layer, it is faster than its clients
    monkeypatch.setattr(serving_overload, "_FILLING_SECONDS", 0.5)
    ours = kinds()[UVICORN]

    def short_of_room(*given):
        return [*ours.command(*given), "--limits.max_waiting_tokens", "9000"]

    kind = dataclasses.replace(ours, command=short_of_room)
    monkeypatch.setattr(serving_overload, "kinds", lambda: {UVICORN: kind})
    path = command("--seconds", "2", "--rounds", "1", "--texts", "1", "2")
    serving_overload.main()
    found = json.loads(path.read_text())["texts_of_a_request"]
    assert list(found) == ["1", "2"]
    for each in found.values():
        assert each["requests_per_second"] > 0
        assert each["offered_per_second"] > each["capacity"]
        assert each["server_seconds_of_an_answer_overloaded"] > 0


def test_windows_over_http_are_those_of_the_offline_predictor(tmp_path, monkeypatch):
    data, encoder = write_data("squad", tmp_path / "data"), write_encoder(tmp_path / "encoder")
    task = TASKS["squad"].model_copy(update={"max_length": 24, "stride": 6})
    _, model, tokenizer = load_model_folder(encoder)
    add_task_head(model, task)
    for head in model.heads.values():
        for parameter in head.parameters():
            parameter.data.normal_(std=1.0)
    folder = tmp_path / "model"
    save_model_folder(folder, model, tokenizer, card="", extra_config=task_config("squad", task))
    path = tmp_path / "results.json"
    line = ["benchmark", "--data", data, "--model", folder, "--json", path]
    monkeypatch.setattr(sys, "argv", [str(each) for each in line])
    served_squad.main()
    found = json.loads(path.read_text())
    assert found["same_answer"] == 1 and found["in_windows"] > 0
    assert found["largest_score_difference"] < 1e-4
    assert found["offline"] == found["served"]

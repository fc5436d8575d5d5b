"""Servers under test, the clients that load them, and version switches."""

import dataclasses
import json
import random
import socket
import sys
import threading

import pytest
from small_tasks import WORDS, write_data, write_encoder

from benchmarks import served_squad, serving, serving_overload, swaps
from benchmarks import servers as served
from benchmarks.servers import INT8, UVICORN, Connection, ask_for_a_while, kinds, request_of
from bert_core.errors import UserError
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
    folder = served.environment_of(kind.name, work)
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


@pytest.mark.slow
def test_exported_graphs_are_peers(command, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "CELLS", {"20": (20, 20)})
    for name in served.EXPORTED:
        stand_in_for_environment(kinds()[name], tmp_path / "work")
    path = command("--servers", UVICORN, *served.EXPORTED, "--seconds", "0.3", "--rounds", "1")
    serving.main()
    cells = json.loads(path.read_text())["cells"]
    for cell in cells.values():
        assert [*cell] == [UVICORN, *served.EXPORTED]
        assert all(each["requests"] > 0 and each["cpu_ms"] > 0 for each in cell.values())


def test_a_model_in_int8_is_compared_with_peers_in_int8():
    cell = {
        UVICORN: {"cpu_ms_of_rounds": [2.0]},
        INT8: {"cpu_ms_of_rounds": [1.0]},
        "pipeline": {"cpu_ms_of_rounds": [8.0]},
        "onnxruntime": {"cpu_ms_of_rounds": [4.0]},
    }
    assert serving.ratios(cell, kinds()) == {UVICORN: 0.5, INT8: 0.25}
    cell["openvino, int8"] = {"cpu_ms_of_rounds": [2.0]}
    assert serving.ratios(cell, kinds()) == {UVICORN: 0.5, INT8: 0.5}


@pytest.mark.slow
def test_our_ranking_beside_a_peer(command, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "RERANK_TOKENS", (14,))
    monkeypatch.setattr(serving, "RERANK_PASSAGES", (3,))
    stand_in_for_environment(kinds("rerank")["cross-encoder"], tmp_path / "work")
    line = ["--route", "rerank", "--seconds", "0.3", "--rounds", "1", "--servers"]
    path = command(*line, UVICORN, INT8, "cross-encoder")
    serving.main()
    cells = json.loads(path.read_text())["cells"]
    assert [*cells] == ["14 tokens, 3 passages, 1 client", "14 tokens, 3 passages, 4 clients"]
    for cell in cells.values():
        assert all(each["requests"] > 0 and each["cpu_ms"] > 0 for each in cell.values())
    command(*line, "litserve")
    with pytest.raises(UserError, match="litserve has no route rerank"):
        serving.main()


@pytest.mark.slow
def test_one_encoder_beside_two(command):
    path = command("--route", "shared", "--seconds", "0.3", "--rounds", "1")
    serving.main()
    cells = json.loads(path.read_text())["cells"]
    assert [*cells] == ["20 tokens, 1 client", "20 tokens, 8 clients"]
    for cell in cells.values():
        assert [*cell] == ["one encoder", "two encoders"]
        assert all(each["requests"] > 0 and each["cpu_ms"] > 0 for each in cell.values())


@pytest.mark.slow
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


@pytest.mark.slow
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
    path = command("--seconds", "5", "--rounds", "1", "--texts", "1", "2")  # on a busy machine too
    serving_overload.main()
    found = json.loads(path.read_text())["texts_of_a_request"]
    assert list(found) == ["1", "2"]
    for each in found.values():
        assert each["requests_per_second"] > 0
        assert each["offered_per_second"] > each["capacity"]
        assert each["server_seconds_of_an_answer_overloaded"] > 0


@pytest.mark.slow
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


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
FULL = b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\nno"


@pytest.fixture
def answering():
    """Starts servers that give one answer to whatever comes, some bytes at a time."""
    listening = []

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def talk(connection):
            with connection:
                while connection.recv(65536):
                    for first in range(0, len(answer), 7):
                        connection.sendall(answer[first : first + 7])

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return server.getsockname()[1]

    yield start
    for server in listening:
        server.close()


def test_an_answer_is_read_whole_whatever_its_form(answering):
    for answer in (PLAIN, CHUNKS, FULL):
        connection = Connection(answering(answer))
        for _ in range(3):  # the connection is kept
            status, body = connection.ask(request_of("/", b"{}"))
            assert status == (429 if answer is FULL else 200)
            assert (b"no" if answer is FULL else b"hello") in body
        connection.close()


def test_every_answer_is_counted_with_what_it_took(answering):
    turn = ask_for_a_while(answering(PLAIN), [request_of("/", b"{}")], clients=3, seconds=0.2)
    assert len(turn.latencies) > 3 and turn.seconds >= 0.2
    assert sum(turn.latencies) <= 3 * turn.seconds


def test_a_refusal_is_no_answer(answering):
    with pytest.raises(RuntimeError, match="429: b'no'"):
        ask_for_a_while(answering(FULL), [request_of("/", b"{}")], clients=2, seconds=0.2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_swap_is_answered_and_memory_looked_at(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    path = tmp_path / "results.json"
    swaps.main(["--model", str(encoder), "--swaps", "6", "--json", str(path)])
    result = json.loads(path.read_text())
    assert list(result["after"]) == ["5", "6"] and result["failures"] == []
    first, last = result["after"]["5"], result["after"]["6"]
    assert first["resident_bytes"] > first["unshared_bytes"] > 50e6
    assert result["growth"] == last["resident_bytes"] / first["resident_bytes"] - 1
    assert last["threads"] == first["threads"] > 1 and last["open_files"] > 3
    assert 0 < result["switch_seconds"]["median"] <= result["switch_seconds"]["largest"]
    assert result["requests"] > 6


def test_what_is_measured_needs_five_swaps():
    with pytest.raises(UserError, match="at least 5"):
        swaps.main(["--swaps", "4"])

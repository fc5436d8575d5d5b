"""Promotion, rollback and history: settings, order of the steps, kills and races."""

import json
import signal
from pathlib import Path

import pytest
from interrupted_promotion import start
from registered_models import (
    NAME,
    champion,
    copy_store,
    store_of_models,
    store_of_names,
    written_models,
)

from bert_core.errors import UserError
from workflows import promote
from workflows.promotion.champion import read_entries
from workflows.promotion.decision import (
    GATE_TAG,
    MOST_REASON,
    REPORT_TAG,
    RollbackSettings,
)
from workflows.runs.mlflow_run import open_client
from workflows.settings import parse_command_line


@pytest.fixture
def uri(tmp_path):
    return copy_store(store_of_models(), tmp_path)


@pytest.fixture
def run(uri, tmp_path, capsys):
    """Calls the command in this process: exit code and what it printed."""

    def call(*arguments, **options):
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        code = promote.main([*arguments, "--name", NAME, "--storage", str(tmp_path), *given])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def entries(uri):
    return list(read_entries(open_client(uri).get_registered_model(NAME).tags).values())


def gate_file(tmp_path, text):
    path = tmp_path / "gate.yaml"
    path.write_text(f"data: {written_models()['data']}\n{text}")
    return path


def test_champions_come_and_go_with_who_when_and_why(run, uri):
    open_client(uri).set_registered_model_alias(NAME, "challenger", "2")
    code, printed = run(version=1, reason="the first")
    assert code == 0 and "champion version 1 of sentiment, before it none" in printed
    assert run(version="challenger", reason="week 31")[0] == 0 and champion(uri) == 2
    code, printed = run("promote", version=2)
    assert code == 0 and "champion version 2 of sentiment already" in printed
    code, printed = run(version=3)
    assert code == 3 and champion(uri) == 2
    assert "drop of accuracy  -0.8000, champion 0.9000, recorded  >= 0      FAILS" in printed
    assert "refused: version 3 of sentiment, failed 1 of 1: drop of accuracy" in printed
    code, printed = run("rollback", reason="complaints")
    assert code == 0 and champion(uri) == 1
    code, printed = run("rollback")
    assert code == 2 and "error: no version of sentiment was champion before: of 1" in printed
    told = [(entry.before, entry.after, entry.state, entry.why) for entry in entries(uri)]
    assert told == [
        (None, 1, "done", "the first"),
        (1, 2, "done", "week 31"),
        (2, 3, "refused", ""),
        (2, 1, "done", "complaints"),
    ]
    code, printed = run("history")
    lines = printed.splitlines()
    assert code == 0 and lines[-1] == "champion version 1" and len(lines) == 6
    for words, line in zip(
        ("promoted", "promoted", "refused", "rolled back"), lines[1:], strict=False
    ):
        assert words in line and entries(uri)[0].who in line


def test_what_the_gate_found_is_kept_with_the_version(run, uri, tmp_path):
    path = gate_file(tmp_path, "metrics: {accuracy: 0.9}\nfolder_mb: 0.2")
    for version, verdict in ((1, "passed 2 of 2"), (3, "failed 1 of 2: accuracy")):
        assert run(version=version, gate=path)[0] == (0 if version == 1 else 3)
        client = open_client(uri)
        found = client.get_model_version(NAME, str(version))
        assert found.tags[f"{GATE_TAG}verdict"] == verdict
        assert found.tags[f"{GATE_TAG}accuracy"] == ("1" if version == 1 else "0")
        report = json.loads(found.tags[REPORT_TAG])
        assert [each["check"] for each in report["checks"]] == ["accuracy", "folder"]
        newest = max(artifact.path for artifact in client.list_artifacts(found.run_id, "gate"))
        written = client.download_artifacts(found.run_id, newest, str(tmp_path))
        assert json.loads(Path(written).read_text()) == report
        for text in (json.dumps(found.tags), Path(written).read_text()):
            assert str(tmp_path) not in text and str(written_models()["data"].parent) not in text
    assert entries(uri)[-1].gate == "failed 1 of 2: accuracy"


def test_a_later_gate_replaces_what_an_earlier_one_found(run, uri, tmp_path):
    assert run(version=3, gate=gate_file(tmp_path, "metrics: {accuracy: 0.9}"))[0] == 3
    assert run(version=3, gate=gate_file(tmp_path, "folder_mb: 1"))[0] == 0
    tags = open_client(uri).get_model_version(NAME, "3").tags
    assert f"{GATE_TAG}folder_mb" in tags and f"{GATE_TAG}accuracy" not in tags


def test_measurements_are_kept_in_tags_where_there_is_no_run(run, uri, tmp_path, monkeypatch):
    path = gate_file(tmp_path, "folder_mb: 1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # where a SQLite registry looks models up
    client = open_client(uri)
    source = client.get_model_version(NAME, "1").source
    for number, run_id in ((6, None), (7, "0" * 32)):
        client.create_model_version(NAME, source, run_id=run_id)
        code, printed = run(version=number, gate=path)
        assert code == 0 and champion(uri) == number, printed
        assert ("note     measurements are in the version's tags alone" in printed) is bool(run_id)
        assert f"{GATE_TAG}verdict" in client.get_model_version(NAME, str(number)).tags


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"version": 4}, "version 4 has another task, mrpc: champion 1 has classification"),
        ({"version": 5}, "version 5 has another task, BertForPreTraining: champion 1 has cl"),
        ({"version": 9}, "unknown version of sentiment: 9 (there are 1, 2, 3, 4, 5)"),
        ({"version": "latest"}, "unknown alias of sentiment, did you mean latest-trained: latest"),
        ({"version": 2, "gate": "none.yaml"}, "No such file or directory): none.yaml"),
        ({"version": 2, "data": "none"}, "none"),
        ({"version": 2, "gates": "a"}, "unknown setting, did you mean gate: --gates"),
    ],
)
def test_bad_input_is_said_in_one_line_and_moves_nothing(run, uri, options, match):
    open_client(uri).set_registered_model_alias(NAME, "champion", "1")
    code, printed = run(**options)
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(errors) == 1 and match in errors[0], printed
    assert champion(uri) == 1 and not entries(uri)


def test_data_of_the_command_line_takes_the_place_of_the_gates(run, uri, tmp_path):
    (tmp_path / "gate.yaml").write_text("data: none\nmetrics: {criterion: 0.9}")
    data = written_models()["data"]
    assert run(version=1, gate=tmp_path / "gate.yaml", data=data)[0] == 0
    code, printed = run(version=3, data=data)
    assert code == 3 and "drop of accuracy" in printed and "40 examples" in printed


@pytest.mark.parametrize(
    ("where", "moved"),
    [pytest.param("before", False, marks=pytest.mark.slow), ("after", True)],
)
def test_a_kill_leaves_the_old_champion_or_the_new_one(run, uri, tmp_path, where, moved):
    assert run(version=1)[0] == 0
    process = start(where, "--name", NAME, "--storage", tmp_path, "--version", 2)
    code, errors = process.finish()
    assert code == -signal.SIGKILL, errors
    assert champion(uri) == (2 if moved else 1)
    assert entries(uri)[-1].state == "moving"
    told = "promoted" if moved else "promote: interrupted"
    assert told in run("history")[1].splitlines()[2]
    code, printed = run(version=2)  # the same command goes on, at once
    assert code == 0 and champion(uri) == 2
    assert ("2 of sentiment already" in printed) is moved
    assert run("rollback")[0] == 0 and champion(uri) == 1
    states = [entry.state for entry in entries(uri)]
    assert states == (["done"] * 3 if moved else ["done", "interrupted", "done", "done"])


def test_a_killed_rollback_is_none_or_a_whole_one(run, uri, tmp_path):
    assert run(version=1)[0] == run(version=2)[0] == 0
    process = start("before", "rollback", "--name", NAME, "--storage", tmp_path)
    assert process.finish() == (-signal.SIGKILL, "") and champion(uri) == 2
    assert run("rollback")[0] == 0 and champion(uri) == 1
    assert [entry.state for entry in entries(uri)] == ["done", "done", "interrupted", "done"]


def test_of_two_at_once_one_succeeds_and_the_other_exits_with_an_error(run, uri, tmp_path):
    first = start("waits", "--name", NAME, "--storage", tmp_path, "--version", 1)
    assert first.pipe.recv() == "judged"
    code, printed = run(version=2)
    assert code == 2 and champion(uri) is None
    assert "error: another promotion of sentiment is under way: " in printed
    assert run("rollback")[0] == 2
    first.pipe.send("continue")
    assert first.finish() == (0, "")
    assert champion(uri) == 1 and [entry.after for entry in entries(uri)] == [1]


def test_a_champion_that_was_moved_by_hand_meanwhile_is_noticed(run, uri, monkeypatch):
    assert run(version=1)[0] == 0
    from workflows.promotion import gate_checks

    judge = gate_checks.judge

    def judged(*arguments):
        open_client(uri).set_registered_model_alias(NAME, "champion", "3")
        return judge(*arguments)

    monkeypatch.setattr(gate_checks, "judge", judged)
    code, printed = run(version=2)
    assert code == 2 and champion(uri) == 3
    assert "moved by another program: from version 1 to version 3" in printed


def test_a_model_without_a_history(tmp_path, capsys):
    store_of_names(tmp_path, versions=1)
    assert promote.main(["history", "--name", NAME, "--storage", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "champion none\n"
    assert promote.main(["rollback", "--name", NAME, "--storage", str(tmp_path)]) == 2
    assert (
        "no version of sentiment was champion before: there is no champ" in capsys.readouterr().err
    )


GIVEN = ["--name", "sentiment", "--version", "3"]


def test_a_reason_is_one_line_that_fits_into_a_tag():
    given = ["--name", "sentiment", "--reason"]
    assert parse_command_line(RollbackSettings, [*given, "week\n 31 "]).reason == "week 31"
    parse_command_line(RollbackSettings, [*given, "x" * MOST_REASON])
    with pytest.raises(UserError, match="at most 1000 characters: --reason"):
        parse_command_line(RollbackSettings, [*given, "x" * (MOST_REASON + 1)])

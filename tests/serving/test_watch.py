"""`python -m serving.watch` fetches models, and says where the pointers to them are."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from forked_programs import ForkedProgram

from bert_core.model_folder import load_model_folder
from serving import watch as watch_module
from serving.rollout.aliases import Address, UnreachableError, read_pointer
from serving.watch import AGAIN_SECONDS, Commands, NewestVersions


@pytest.fixture
def start_watch(tmp_path, subprocess_environment):
    """Starts the command with a cache of the test's own."""

    def begin(registry, *models, options=()):
        command = ["serving.watch", "--tracking_uri", registry.uri]
        command += [*(f"--model={model}" for model in models), "--cache", str(tmp_path / "models")]
        return ForkedProgram(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=subprocess_environment,
            cwd=tmp_path,
        )

    return begin


def ended(watch):
    """Its exit code, the lines of JSON that it said, and its last line of errors."""
    said, errors = watch.communicate(timeout=120)
    lines = [json.loads(line) for line in said.splitlines()]
    return watch.returncode, lines, (errors.splitlines() or [""])[-1]


def pointer_of(line):
    """The pointer that a line of its output is about."""
    return read_pointer(Path(line["pointer"]))


def order(watch, text):
    """Gives it a line, and reads one."""
    watch.stdin.write(f"{text}\n")
    watch.stdin.flush()
    return json.loads(watch.stdout.readline())


@pytest.mark.slow
def test_two_that_start_at_once_fetch_once(start_watch, registry, small_models, tmp_path):
    models = ("models:/people@champion", "models:/mood/1")
    first, second = (ended(each) for each in [start_watch(registry, *models) for _ in range(2)])
    assert first == second
    code, lines, _ = first
    assert code == 0 and [line["model"] for line in lines] == list(models)
    people, mood = (pointer_of(line) for line in lines)
    assert (people.name, people.version, people.alias) == ("people", 1, "champion")
    assert (mood.version, mood.alias) == (1, None)
    for pointer, name in ((people, "entities"), (mood, "sentiment")):
        load_model_folder(pointer.folder)
        wanted = (small_models[name] / "checksums").read_bytes()
        assert (pointer.folder / "checksums").read_bytes() == wanted
    visible = [path for path in (tmp_path / "models").iterdir() if path.name[0] != "."]
    folders = {each.name for each in visible if not each.is_symlink()}
    assert folders == {"pointers", people.folder.name, mood.folder.name}


def test_an_alias_that_moved_moves_its_pointer(start_watch, copied_registry, small_models):
    alias = "models:/people@champion"
    code, (line,), _ = ended(start_watch(copied_registry, alias))
    first = pointer_of(line)
    assert copied_registry.register(small_models["topics"], "people", "champion") == 2
    code, (again,), _ = ended(start_watch(copied_registry, alias))
    assert code == 0 and again == line, "the same file"
    second = pointer_of(line)
    assert (first.version, second.version) == (1, 2) and first.folder != second.folder
    assert first.folder.is_dir(), "a server may be reading it"

    copied_registry.database.rename(copied_registry.database.with_name("gone"))
    code, (warned,), _ = ended(start_watch(copied_registry, alias))
    assert code == 0 and "is version 2, as fetched before: no model" in warned["warning"]
    assert pointer_of(line) == second
    code, (problem,), error = ended(start_watch(copied_registry, "models:/people/1"))
    assert code == 2 and problem["what"] == "no model models:/people/1"
    assert error.startswith("error: no model models:/people/1: no MLflow store at sqlite:///")

    copied_registry.database.with_name("gone").rename(copied_registry.database)
    copied_registry.client.delete_registered_model_alias("people", "champion")
    code, _, error = ended(start_watch(copied_registry, alias))
    assert code == 2 and "the MLflow UI lists the models" in error


def test_standard_input_gives_orders(start_watch, copied_registry, small_models):
    options = ("--while_stdin_is_open", "--follow", "600")
    watch = start_watch(copied_registry, options=options)

    alias = "models:/people@champion"
    first = order(watch, alias)
    assert (first["model"], first["warning"], pointer_of(first).version) == (alias, None, 1)
    began = time.monotonic()
    assert order(watch, alias) == first
    for wrong, remedy in (
        ("people@champion", "write models:/name@alias"),
        ("models:/people@nobody", "the MLflow UI lists the models"),
        ("models:/people/9", "the MLflow UI lists the models"),
    ):
        problem = order(watch, wrong)
        assert problem["model"] == wrong and remedy in problem["remedy"] and problem["what"]
    copied_registry.register(small_models["topics"], "people", "champion")
    assert order(watch, "\n\n") == first and pointer_of(first).version == 2
    mood = order(watch, "models:/mood/1")
    assert pointer_of(mood).name == "mood"
    assert time.monotonic() - began < 60, "it has not waited for the next time to ask"

    copied_registry.database.rename(copied_registry.database.with_name("gone"))
    assert "is version 2, as fetched before" in order(watch, alias)["warning"]
    assert "no MLflow store" in order(watch, "models:/people/1")["where"]
    copied_registry.database.with_name("gone").rename(copied_registry.database)
    watch.stdin.write("models:/people/1\n")
    code, (last,), _ = ended(watch)
    assert code == 0 and last["model"] == "models:/people/1", "what came before the end is done"


def test_after_a_switch_there_is_room(start_watch, copied_registry, small_models):
    options = ("--while_stdin_is_open", "--cache_gib", "0.000001")
    watch = start_watch(copied_registry, "models:/people@champion", options=options)
    line = json.loads(watch.stdout.readline())
    first = pointer_of(line).folder
    copied_registry.register(small_models["topics"], "people", "champion")
    order(watch, "")
    second = pointer_of(line).folder
    order(watch, "models:/people@champion")
    assert first != second and first.is_dir(), "it was used within the hour"
    os.utime(first, (0, 0))
    order(watch, "models:/people@champion")
    assert first.is_dir(), "no switch"
    mood = order(watch, "models:/mood/1")
    code, (notice,), _ = ended(watch)
    assert code == 0 and first.name in notice["notice"] and not first.exists()
    assert second.is_dir() and pointer_of(mood).folder.is_dir()


def test_orders_queue_and_wake_ups_collapse():
    reading, writing = os.pipe()
    commands = Commands()
    with os.fdopen(reading, "rb") as lines:
        thread = threading.Thread(target=commands.read, args=(lines,))
        thread.start()
        assert commands.wait(0.05) is True, "the time is over"
        os.write(writing, b"\n\r\n \nmodels:/a@b\n" + "models:/ä b@c\r\n".encode())
        while commands.wait(None):  # the wake-ups may be there before the others
            pass
        assert commands.take_address() == "models:/a@b"
        assert commands.take_address() == "models:/ä b@c"
        assert commands.take_address() is None and not commands.have_ended
        while commands.wait(0):  # at most one is left, and no time is waited for another
            break
        os.write(writing, b"\xff\xfe\nlast")
        os.close(writing)
        thread.join(10)
    assert not commands.have_ended, "what was ordered before the end is done"
    assert commands.wait(None) is False
    assert commands.take_address() == "\ufffd\ufffd" and commands.take_address() == "last"
    assert commands.have_ended and commands.wait(None) is False
    unread = Commands()
    unread.read(iter([b"\n"] * 5 + [b"a\n"]))  # wake-ups that nobody took are one
    assert unread.take_address() == "a" and unread.wait(0) is False, "it has ended"


CHAMPION = Address.of("models:/mood@champion")


def test_the_newest_version_is_asked_once_a_minute_for_all_aliases_of_a_model(monkeypatch):
    clock, asked, says = [100.0], [], {"mood": 3, "other": 4}
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: clock[0])

    def ask(name, tracking_uri):
        asked.append((name, tracking_uri))
        if says[name] is None:
            raise UnreachableError("no answer", "there", "wait")
        return says[name]

    newest = NewestVersions("sqlite:///x", ask)
    assert newest.of(CHAMPION) == 3
    says["mood"], clock[0] = 4, clock[0] + AGAIN_SECONDS - 1
    assert newest.of(Address.of("models:/mood@challenger")) == 3
    clock[0] += 1
    assert newest.of(CHAMPION) == 4
    assert asked == [("mood", "sqlite:///x")] * 2
    assert newest.of(Address.of("models:/other@champion")) == 4
    assert asked[-1][0] == "other"
    assert newest.of(Address.of("models:/mood/2")) is None, "a number is meant to stay"
    assert len(asked) == 3

    silent = NewestVersions("sqlite:///x", ask)  # what MLflow said last stays
    for says["mood"], known in ((None, None), (5, 5), (None, 5)):
        clock[0] += AGAIN_SECONDS
        assert silent.of(CHAMPION) == known

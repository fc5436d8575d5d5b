"""The process beside a server that asks MLflow."""

import logging
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from running import wait_until

from bert_core.errors import UserError
from serving.rollout.aliases import Address, read_pointer, read_status
from serving.rollout.watcher import WatchProcess, WatchSettings

CHAMPION = Address("people", "champion", None)


@pytest.fixture
def watch(tmp_path, quick_watches):
    """Starts processes with a cache of the test's own, and ends them."""
    started = []

    def begin(uri, *more, addresses=(CHAMPION,), poll_seconds=0.0):
        asked = more or addresses
        process = WatchProcess(WatchSettings(asked, uri, tmp_path / "models", poll_seconds))
        started.append(process)
        process.start()
        return process

    yield begin
    for each in started:
        each.close()


@pytest.fixture
def children(quick_watches):
    """Gives the processes of serving.watch that run."""
    return lambda: [process for process in quick_watches if process.poll() is None]


def test_once_it_fetches_warns_or_refuses(watch, copied_registry, tmp_path, caplog):
    uri, version = copied_registry.uri, Address("people", None, 1)
    found = {
        address: read_pointer(path)
        for address, path in watch(uri, CHAMPION, version).pointers.items()
    }
    assert found[CHAMPION].folder == found[version].folder
    assert found[CHAMPION].folder.parent == tmp_path / "models"
    with pytest.raises(UserError, match="the MLflow UI lists") as told:
        watch(uri, CHAMPION, Address("people", "nobody", None))
    assert told.value.what == "no model models:/people@nobody"
    copied_registry.database.unlink()
    with caplog.at_level(logging.WARNING):
        (path,) = watch(uri).pointers.values()
    assert read_pointer(path) == found[CHAMPION]
    (warning,) = caplog.messages
    assert warning.startswith("warning: models:/people@champion is version 1, as fetched before")


def test_a_process_that_breaks_is_one_line(watch, tmp_path):
    (tmp_path / "models").touch()
    with pytest.raises(UserError) as told:
        watch("what://is/this")
    assert "\n" not in str(told.value) and "models:/people@champion" in str(told.value)


def test_it_follows_whatever_ends_it_and_ends_with_its_owner(
    watch, children, copied_registry, small_models, caplog, monkeypatch
):
    monkeypatch.setattr("serving.rollout.watcher._AGAIN_SECONDS", 0.1)
    process = watch(copied_registry.uri, poll_seconds=0.1)
    (path,) = process.pointers.values()
    (child,) = children()
    os.kill(child.pid, signal.SIGKILL)
    copied_registry.register(small_models["topics"], "people", "champion")
    wait_until(lambda: read_pointer(path).version == 2)
    assert "ended with -9 and is restarted" in caplog.text
    asked_at = read_status(path).asked_at
    copied_registry.database.rename(copied_registry.database.with_name("gone"))
    wait_until(lambda: read_status(path).fault is not None)
    assert "as fetched before" in read_status(path).fault and read_status(path).asked_at > asked_at
    copied_registry.database.with_name("gone").rename(copied_registry.database)
    wait_until(lambda: read_status(path).fault is None)
    assert len(children()) == 1
    process.close()
    assert not children()


def test_addresses_are_added_while_it_runs(
    watch, children, copied_registry, small_models, monkeypatch
):
    monkeypatch.setattr("serving.rollout.watcher._AGAIN_SECONDS", 0.1)
    process = watch(copied_registry.uri, addresses=(), poll_seconds=600.0)
    assert not children(), "it has nothing to ask"
    process.ask_now()
    with ThreadPoolExecutor(4) as pool:
        path, *others = pool.map(process.add, [CHAMPION] * 4)
        assert {path} == {*others} == {*process.pointers.values()}
    assert read_pointer(path).version == 1
    with pytest.raises(UserError, match="no model models:/people@nobody"):
        process.add(Address("people", "nobody", None))
    with pytest.raises(UserError, match="not a model URI"):
        process.add(Address("people\nmodels:/mood/1", None, 1))
    (child,) = children()
    copied_registry.register(small_models["topics"], "people", "champion")
    process.ask_now()
    wait_until(lambda: read_pointer(path).version == 2)

    os.kill(child.pid, signal.SIGKILL)
    copied_registry.client.delete_registered_model_alias("people", "champion")
    mood = process.add(Address("mood", None, 1))
    assert read_pointer(mood).name == "mood"
    wait_until(lambda: "the MLflow UI lists" in (read_status(path).fault or ""))
    assert read_pointer(path).version == 2, "it has no new pointer, and follows the other"
    copied_registry.client.set_registered_model_alias("people", "champion", "1")
    process.ask_now()
    wait_until(lambda: read_pointer(path).version == 1)

    (child,) = children()
    os.kill(child.pid, signal.SIGSTOP)
    monkeypatch.setattr("serving.rollout.watcher._ADD_SECONDS", 0.2)
    with pytest.raises(UserError, match="has not given it within"):
        process.add(Address("mood", "champion", None))
    os.kill(child.pid, signal.SIGCONT)
    wait_until(lambda: Address("mood", "champion", None) in process.pointers)
    process.close()
    with pytest.raises(UserError, match="the server is stopping"):
        process.add(Address("people", None, 1))


MOOD = Address("mood", "champion", None)


@pytest.fixture
def silent_store(monkeypatch):
    """An address for artifacts whose store takes connections and never answers."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        yield "s3://bucket/x"


@pytest.mark.slow
def test_a_fault_of_one_address_stays_that_of_one_address(
    watch, quick_watches, children, copied_registry, small_models, silent_store
):
    impatient = "import serving.watch; serving.watch._PATIENCE_SECONDS = 1.0"
    quick_watches.before = partial(exec, impatient)
    process = watch(copied_registry.uri, MOOD, CHAMPION, poll_seconds=0.1)
    (child,) = children()
    mood, people = process.pointers[MOOD], process.pointers[CHAMPION]
    copied_registry.register(small_models["grade"], "mood")
    copied_registry.register(small_models["topics"], "people")
    locations = ("http://[", "file:///a\0b", "gs://a/b", silent_store)
    for location, version in zip(locations, (2, 1, 2, 1), strict=True):
        copied_registry.move_artifacts(location, "mood", 2)
        copied_registry.client.set_registered_model_alias("mood", "champion", "2")
        said = "still being asked" if location == silent_store else "is version 1, as fetched"
        wait_until(lambda said=said: said in (read_status(mood).fault or ""))
        copied_registry.client.set_registered_model_alias("people", "champion", str(version))
        wait_until(lambda v=version: read_pointer(people).version == v)
        assert read_status(people).fault is None and read_pointer(mood).version == 1
        copied_registry.client.set_registered_model_alias("mood", "champion", "1")
        if location != silent_store:
            wait_until(lambda: read_status(mood).fault is None)
    assert children() == [child], "it has not ended"
    process.close()

    copied_registry.client.set_registered_model_alias("mood", "champion", "2")
    copied_registry.client.delete_registered_model_alias("people", "champion")
    again = watch(copied_registry.uri, MOOD, CHAMPION, poll_seconds=0.1)
    assert again.pointers == {MOOD: mood, CHAMPION: people}
    assert read_pointer(mood).version == 1 and "still being asked" in read_status(mood).fault
    assert read_pointer(people).version == version
    assert "the MLflow UI lists" in read_status(people).fault


def test_addresses_are_added_to_what_asks_once(watch, children, copied_registry):
    process = watch(copied_registry.uri, addresses=())
    path = process.add(CHAMPION)
    process.ask_now()
    assert read_pointer(path).version == 1 and process.add(CHAMPION) == path
    with pytest.raises(UserError, match="no model models:/people@nobody"):
        process.add(Address("people", "nobody", None))
    assert process.pointers == {CHAMPION: path} and not children()

"""How commands run and end: exit codes, one line for an error, signals, calls in a thread."""

import errno
import os
import signal
import threading
import time

import pytest

from bert_core.errors import UserError
from workflows import command
from workflows.command import RefusedError, run_command


@pytest.fixture(autouse=True)
def interruptible():
    """A shell without job control starts what runs in its background deaf to SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def told(number):
    """An action that gets a signal."""

    def action():
        os.kill(os.getpid(), number)
        time.sleep(10)  # is woken at once
        return True

    return action


def judged():
    raise RefusedError("version 2 is worse")


def mistaken():
    raise UserError("no such folder", "a", "give b")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_ends_a_command_as_ctrl_c_does(number, capsys):
    before = signal.getsignal(signal.SIGTERM)
    closed = []

    def action():
        try:
            return told(number)()
        finally:
            closed.append(True)

    assert run_command(action) == 130
    assert capsys.readouterr() == ("", "stopped; the same command goes on\n")
    assert closed and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "path", ["a" * 300, "file/below", "closed/a", "link", "file/new\nline\x1b"]
)
def test_a_path_that_cannot_be_used_is_one_line(open_folder, nobody, capsys, path):
    (open_folder / "file").touch()
    (open_folder / "closed").mkdir(0)
    (open_folder / "link").symlink_to("link")
    with nobody():
        assert run_command(lambda: bool((open_folder / path).read_bytes())) == 2
    (open_folder / "closed").chmod(0o700)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "(check the path" in said
    assert len(said.splitlines()) == 1 and "\x1b" not in said


def test_another_fault_of_the_system_is_not_hidden():
    def fail():
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    with pytest.raises(ConnectionResetError):
        run_command(fail)


def test_exit_codes(capsys):
    assert run_command(lambda: True) == 0
    assert run_command(lambda: False) == 130
    assert capsys.readouterr() == ("", "")
    assert run_command(mistaken) == 2
    assert capsys.readouterr() == ("", "error: no such folder: a (give b)\n")
    assert run_command(judged) == 3
    assert capsys.readouterr() == ("", "refused: version 2 is worse\n")
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: bool(1 // 0))


def test_a_full_disk_is_one_line_wherever_it_is_met(capsys, tmp_path):
    def write():
        with open("/dev/full", "w") as file:  # noqa: PTH123 - a device
            file.write("x")
        return True

    assert run_command(write) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: the disk is full") and told.count("\n") == 1
    with pytest.raises(FileNotFoundError):
        run_command(lambda: bool((tmp_path / "missing").read_text()))


def test_one_signal_asks_and_a_second_abandons(monkeypatch):
    asked = []
    clock = [100.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(KeyboardInterrupt),
        command.stop_on_signal(lambda: asked.append(True)),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [True]
        os.kill(os.getpid(), signal.SIGTERM)  # a terminal and a job may both pass it on
        clock[0] += 2
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_call_in_a_thread_returns_or_raises_what_it_would():
    release = threading.Event()
    call = command.InThread(lambda: release.wait(30) and "done")
    assert call.running(0.01)
    release.set()
    end = time.monotonic() + 10
    while call.running(0.05):
        assert time.monotonic() < end
    assert call.result() == "done"
    broken = command.InThread(lambda: 1 // 0)
    while broken.running(0.05):
        pass
    with pytest.raises(ZeroDivisionError):
        broken.result()

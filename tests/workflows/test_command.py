import os
import signal
import time

import pytest

from bert_core.errors import UserError
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

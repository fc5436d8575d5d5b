import os
import signal
import threading
import time

import pytest

from workflows import background_call


def test_one_signal_asks_and_a_second_abandons(monkeypatch):
    asked = []
    clock = [100.0]
    monkeypatch.setattr(background_call.time, "monotonic", lambda: clock[0])
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(KeyboardInterrupt),
        background_call.stop_on_signal(lambda: asked.append(True)),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [True]
        os.kill(os.getpid(), signal.SIGTERM)  # a terminal and a job may both pass it on
        clock[0] += 2
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_call_in_a_thread_returns_or_raises_what_it_would():
    release = threading.Event()
    call = background_call.InThread(lambda: release.wait(30) and "done")
    assert call.running(0.01)
    release.set()
    end = time.monotonic() + 10
    while call.running(0.05):
        assert time.monotonic() < end
    assert call.result() == "done"
    broken = background_call.InThread(lambda: 1 // 0)
    while broken.running(0.05):
        pass
    with pytest.raises(ZeroDivisionError):
        broken.result()

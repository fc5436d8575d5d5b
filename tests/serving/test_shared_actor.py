"""An actor that nobody asks for any more ends."""

import multiprocessing
import time

from serving.shared_actor import UntilForgotten


def forgotten(ended):
    """A process that is asked for twice, and then never more."""
    until = UntilForgotten(ended.set, seconds=0.6)
    for _ in range(2):
        time.sleep(0.4)
        until.note()
    time.sleep(60)


def test_it_ends_when_nobody_has_asked_for_a_while():
    context = multiprocessing.get_context("forkserver")
    ended = context.Event()
    process = context.Process(target=forgotten, args=(ended,))
    process.start()
    assert ended.wait(30)
    process.join(10)
    assert process.exitcode == 0

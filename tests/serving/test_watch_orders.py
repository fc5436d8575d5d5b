"""Lines of standard input become orders: none is lost, and wake-ups are not counted."""

import os
import threading

from serving.watch_orders import Orders


def test_orders_queue_and_wake_ups_collapse():
    reading, writing = os.pipe()
    orders = Orders()
    with os.fdopen(reading, "rb") as lines:
        thread = threading.Thread(target=orders.read, args=(lines,))
        thread.start()
        assert orders.wait(0.05) is True, "the time is over"
        os.write(writing, b"\n\r\n \nmodels:/a@b\n" + "models:/ä b@c\r\n".encode())
        while orders.wait(None):  # the wake-ups may be there before the others
            pass
        assert orders.take_address() == "models:/a@b"
        assert orders.take_address() == "models:/ä b@c"
        assert orders.take_address() is None and not orders.have_ended
        while orders.wait(0):  # at most one is left, and no time is waited for another
            break
        os.write(writing, b"\xff\xfe\nlast")
        os.close(writing)
        thread.join(10)
    assert not orders.have_ended, "what was ordered before the end is done"
    assert orders.wait(None) is False
    assert orders.take_address() == "\ufffd\ufffd" and orders.take_address() == "last"
    assert orders.have_ended and orders.wait(None) is False


def test_wake_ups_that_nobody_took_are_one():
    orders = Orders()
    waker = threading.Thread(target=orders.read, args=(iter([b"\n"] * 5 + [b"a\n"]),))
    waker.start()
    waker.join()
    assert orders.take_address() == "a"
    assert orders.wait(0) is False, "it has ended"

import threading
import time

from serving.leases import Leases


def test_whoever_waits_does_so_until_the_last_has_ended():
    leases = Leases()
    assert leases.wait(0)
    leases.take()
    leases.take()
    assert not leases.wait(0.01) and leases.number == 2
    ended = []
    waiting = threading.Thread(target=lambda: ended.append(leases.wait(30)))
    waiting.start()
    leases.release()
    time.sleep(0.05)
    assert not ended
    leases.release()
    waiting.join()
    assert ended == [True] and leases.number == 0

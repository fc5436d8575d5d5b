import os
import time

import psutil
import pytest

from benchmarks.cluster_memory import Memory, resident_bytes, watched_memory


def test_the_peak_is_above_what_was_there_before():
    assert Memory(100, [(0.2, 120), (0.4, 170), (0.6, 90)]).peak_above_idle == 70
    assert Memory(100).peak_above_idle == 0


@pytest.mark.ray
def test_what_work_takes_is_seen_while_it_goes_on(ray_cluster):
    assert ray_cluster  # this process has joined it
    assert resident_bytes() > psutil.Process(os.getpid()).memory_full_info().pss  # the cluster too
    with watched_memory(0.05) as memory:
        held = bytearray(os.urandom(1 << 20) * 200)
        time.sleep(1)
        del held
    assert memory.peak_above_idle == pytest.approx(200 << 20, rel=0.3)
    times = [at for at, _ in memory.series]
    assert times == sorted(times) and len(times) >= 2

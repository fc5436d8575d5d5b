"""A program: a cluster of two machines with a CPU each, a sweep on it, and one machine is lost.

`python losing_node.py COMMAND…` prints what the command prints, and how many trials it lost.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
from ray.cluster_utils import Cluster


def trials_below(process):
    """The processes that train below a machine's raylet."""
    trials = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may have ended since, or be a zombie
            if "ImplicitFunc.train" in " ".join(child.cmdline()):
                trials.append(child)
    return trials


def main(command):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    other = cluster.add_node(num_cpus=1)
    raylet = psutil.Process(next(iter(other.all_processes["raylet"])).process.pid)
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    sweep = subprocess.Popen(command, env=environment)
    end = time.monotonic() + 200
    while not (lost := trials_below(raylet)):
        assert sweep.poll() is None and time.monotonic() < end, "no trial has begun there"
        time.sleep(0.2)
    time.sleep(3)
    victims = [raylet, *raylet.children(recursive=True)]
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    cluster.remove_node(other, allow_graceful=False)
    print(f"lost {len(lost)} trials", flush=True)
    code = sweep.wait(400)
    cluster.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

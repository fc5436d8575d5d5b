"""The client of programs that wait."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from scripted_server import scripted

from serving.client import Client, RefusalError


def test_threads_may_share_a_client():
    lists = [[f"{number}-{place}" for place in range(10)] for number in range(8)]
    with (
        scripted(503, 503, limits={"max_items": 3}) as server,
        Client(server.address) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        found = list(pool.map(client.classify, lists))
    assert [[each.label for each in some] for some in found] == lists


def test_after_an_error_nobody_goes_on_asking():
    with (
        scripted(422, *[503] * 1000, limits={"max_items": 1}) as server,
        Client(server.address, concurrency=4) as client,
    ):
        with pytest.raises(RefusalError):
            client.classify(["a"] * 20)
        time.sleep(0.2)
        asked = len(server.asked)
        time.sleep(0.5)
        assert len(server.asked) == asked
    assert not [each for each in threading.enumerate() if each.name.startswith("asking")]


def test_a_path_before_the_routes_is_kept():
    with scripted() as server, Client(f"{server.address}/bert/") as client:
        assert client.classify("a").version == "7"
    assert server.paths == ["/bert/v1/classify"]

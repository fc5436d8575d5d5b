"""The client of programs that do other things meanwhile."""

import asyncio

import pytest
from scripted_server import SILENCE, scripted

from serving.client import AsyncClient, RefusalError


def test_many_questions_wait_at_once():
    async def ask(address):
        async with AsyncClient(address) as client:
            texts = [str(number) for number in range(20)]
            found = await asyncio.gather(*map(client.classify, texts))
            assert [each.label for each in found] == texts

    with scripted(503, 429, 503, delay=lambda _: 0.1) as server:
        asyncio.run(ask(server.address))
        assert server.most_at_once > 5


def test_who_is_cancelled_asks_no_more():
    async def ask(address):
        async with AsyncClient(address, concurrency=2) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.classify(["a"] * 10)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with scripted(SILENCE, *[503] * 1000, limits={"max_items": 1}) as server:
        asyncio.run(ask(server.address))


def test_after_an_error_nobody_goes_on_asking():
    async def ask(address):
        async with AsyncClient(address, concurrency=4) as client:
            with pytest.raises(RefusalError):
                await client.classify(["a"] * 20)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with scripted(422, *[503] * 1000, limits={"max_items": 1}) as server:
        asyncio.run(ask(server.address))

"""A request is known wherever it is worked on, and nowhere else."""

import asyncio

from serving.asking import Asking, asking


def test_requests_do_not_see_one_another():
    async def work(name):
        asking.set(Asking(name))
        await asyncio.sleep(0.01)
        return asking.get().request_id

    async def both():
        return await asyncio.gather(work("a"), work("b"))

    assert asyncio.run(both()) == ["a", "b"]
    assert asking.get() is None

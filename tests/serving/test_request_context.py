"""A request is known wherever it is worked on, and nowhere else."""

import asyncio

from serving.request_context import RequestContext, current_request


def test_requests_do_not_see_one_another():
    async def work(name):
        current_request.set(RequestContext(name))
        await asyncio.sleep(0.01)
        return current_request.get().request_id

    async def both():
        return await asyncio.gather(work("a"), work("b"))

    assert asyncio.run(both()) == ["a", "b"]
    assert current_request.get() is None

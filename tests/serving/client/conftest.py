"""Both halves of the client, asked in the same words."""

import asyncio

import pytest

from serving.client import AsyncClient, Client


class Awaited:
    """An asynchronous client whose methods are waited for."""

    def __init__(self, runner, client):
        self._runner, self._client = runner, client

    def __repr__(self):
        return repr(self._client)

    def __getattr__(self, name):
        async def wait_for(*arguments, **options):
            return await getattr(self._client, name)(*arguments, **options)

        return lambda *arguments, **options: self._runner.run(wait_for(*arguments, **options))


@pytest.fixture(params=["sync", "async"])
def open_client(request):
    """Opens clients of one half, and closes them in the end."""
    with asyncio.Runner() as runner:
        opened = []

        def open_one(address, **settings):
            if request.param == "sync":
                client = Client(address, **settings)
                opened.append(client.close)
                return client
            client = Awaited(runner, AsyncClient(address, **settings))
            opened.append(client.aclose)
            return client

        yield open_one
        for close in opened:
            close()

"""Whoever follows docs/new_route.md gets a route that the server answers and the client asks."""

import asyncio
import re

from running import start
from small_tasks import write_encoder

import serving.client.routes
import serving.routes.texts
import serving.schemas
from serving import app
from serving.client import AsyncClient
from serving.engine import Engine
from serving.models import close_models, load_models
from serving.routes.json_routes import own_router

SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = (serving.schemas, serving.routes.texts, serving.client.routes)
"""Where the page puts each of its snippets."""


def followed(page):
    """The names of each module with its snippet in it; the modules stay as they are."""
    added = {}
    for module, snippet in zip(MODULES, SNIPPET.findall(page), strict=True):
        names = vars(module) | added
        if module is serving.client.routes:
            names["CountedText"] = added["TokenCount"]
        before = dict(names)
        exec(snippet, names)
        added |= {name: each for name, each in names.items() if before.get(name) is not each}
        yield names


def test_the_route_of_the_page_answers(repository, tmp_path, monkeypatch):
    page = (repository / "docs" / "new_route.md").read_text(encoding="utf-8")
    schemas, routes, client_routes = followed(page)

    class Texts(serving.routes.texts.TextRoutes):
        token_count = routes["token_count"]

        @property
        def router(self):
            texts = {"/v1/token-count": (self.token_count, schemas["TokenCountAnswer"])}
            return own_router({"texts": texts})

    monkeypatch.setattr(app, "TextRoutes", Texts)
    folders = {"encoder": write_encoder(tmp_path / "encoder")}
    models = load_models(folders)
    server, stop = start(Engine(models), folders)

    async def ask(inputs):
        async with AsyncClient(server.address) as client:
            return await client._ask(client_routes["TOKEN_COUNT"], inputs, {"model": "encoder"})

    try:
        found = asyncio.run(ask(["the cat 👩‍🚀", ""]))
        assert [(each.n_tokens, each.n_unknown) for each in found] == [(5, 1), (2, 0)]
        assert asyncio.run(ask("a cat")).model == "encoder"
        assert server.ask("/v1/token-count", {"inputs": "a", "overflow": "left"})[0] == 422
        _, document = server.ask("/openapi.json")
        assert "422" in document["paths"]["/v1/token-count"]["post"]["responses"]
    finally:
        stop()
        close_models(list(models.values()))

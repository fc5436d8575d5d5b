"""How our own routes are registered."""

from serving.routes.own import own_router
from serving.schemas.fields import Problem


async def handler():
    """Says nothing."""


def test_routes_take_posts_and_name_their_refusals():
    (route,) = own_router("tag", {"/v1/a": (handler, Problem)}).routes
    assert route.path == "/v1/a" and route.methods == {"POST"}
    assert route.response_model is Problem and {413, 422, 429} <= route.responses.keys()

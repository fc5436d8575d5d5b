"""How our own routes are registered, and answer."""

from serving.routes.own import answer_of, own_router
from serving.schemas.fields import Problem


async def handler():
    """Says nothing."""


def test_routes_take_posts_and_name_their_refusals():
    (route,) = own_router("tag", {"/v1/a": (handler, Problem)}).routes
    assert route.path == "/v1/a" and route.methods == {"POST"}
    assert route.response_model is Problem and {413, 422, 429} <= route.responses.keys()


def test_answers_leave_out_what_says_nothing():
    response = answer_of(Problem(title="é", status=1, detail="b"))
    assert response.body.decode() == '{"type":"about:blank","title":"é","status":1,"detail":"b"}'
    assert response.media_type == "application/json"

"""The server answers the requests that an older version was asked as it did then."""

import pytest
from answering import normalized_document, recorded_answer, served
from fixture_places import assert_alike, read_requests, recorded


@pytest.fixture(scope="module")
def server():
    """One server of all model folders, in this process."""
    with served() as running:
        yield running


OTHER_WINDOWS = (73, 740)
"""Requests to read a long context in windows of `max_seq_len`, which the older version let start
one token apart, or as far apart as the model's longer ones: they overlap as asked now."""


def test_it_answers_all_requests_as_recorded(server):
    different = []
    for number, request in enumerate(read_requests()):
        wanted = request.pop("answer")
        try:
            found = without_new_routes(recorded_answer(server, request))
            if number in OTHER_WINDOWS:
                assert "max_seq_len" in request["body"]["parameters"]
                wanted["content"] = found["content"] = None
            assert_alike(found, wanted)
        except AssertionError as error:
            different.append(f"{number} {request['path']}: {error}")
    assert not different, f"{len(different)} answers differ:\n" + "\n\n".join(different[:5])


def without_new_routes(answer):
    """An answer of /info in which a model's `routes` are those of the older version; or another."""
    models = answer["content"].get("models", {}) if isinstance(answer["content"], dict) else {}
    known = recorded()["document"] if models else ()
    for model in models.values():
        model["routes"] = [route for route in model["routes"] if f"post {route}" in known]
    return answer


def test_its_routes_take_and_say_what_they_did(server):
    """Nothing that a client may send, and no status that it may get, has gone."""
    now = normalized_document(server)
    for route, before in recorded()["document"].items():
        assert route in now, route
        assert now[route]["required"] == before["required"], route
        for part in ("parameters", "fields", "statuses"):
            assert set(before[part]) <= set(now[route][part]), (route, part)

"""The application: its document, its page, and addresses that are not there."""


def test_unknown_addresses_are_problems(server):
    for path, body, status in (("/v1/nothing", None, 404), ("/v1/classify", None, 405)):
        found, problem, headers = server.ask_whole(path, body)
        assert found == status == problem["status"]
        assert headers["Content-Type"] == "application/problem+json"


def test_nobody_is_sent_to_another_address(server):
    """It would be an absolute one, of http where TLS ends before the server."""
    for path in ("/v1/classify/", "/embed/", "/docs/", "/health/", "/openapi.json/", "/nothing/"):
        for body in (None, {"inputs": "a cat"}):
            status, _, headers = server.ask_whole(path, body)
            assert status == 404 and "Location" not in headers


def test_the_document_names_what_may_be_asked_and_refused(server):
    _, document = server.ask("/openapi.json")
    route = document["paths"]["/v1/ner"]["post"]
    assert route["requestBody"]["content"]["application/json"]
    assert {"200", "400", "404", "408", "413", "422", "429", "503"} <= route["responses"].keys()
    assert "application/problem+json" in route["responses"]["422"]["content"]
    schemas = document["components"]["schemas"]
    assert {"Problem", "NerRequest", "NerAnswer"} <= schemas.keys()
    assert "HTTPValidationError" not in schemas


def test_the_page_of_the_api_needs_no_network(server):
    status, page, headers = server.ask_whole("/docs")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert b'href="docs"' in server.ask("/")[1]


def test_each_route_has_an_example_that_it_takes(server):
    _, document = server.ask("/openapi.json")
    schemas = document["components"]["schemas"]
    asked = 0
    for path, operations in document["paths"].items():
        if "post" not in operations:
            continue
        body = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
        (example,) = schemas[body["$ref"].rpartition("/")[2]]["examples"]
        model = {"/predict": "?model=sentiment", "/hf/text-classification": "?model=sentiment"}
        own = {"/v1/classify": "sentiment", "/v1/explain": "sentiment", "/v1/embeddings": "encoder"}
        if path in own:
            example["model"] = own[path]
        if path == "/v1/decode":
            example["ids"] = [2, 3]
        status, content = server.ask(path + model.get(path, ""), example)
        assert status == 200, (path, content)
        asked += 1
    assert asked == 22

"""The application: its document, and addresses that are not there."""


def test_unknown_addresses_are_problems(server):
    for path, body, status in (("/v1/nothing", None, 404), ("/v1/classify", None, 405)):
        found, problem, headers = server.ask_whole(path, body)
        assert found == status == problem["status"]
        assert headers["Content-Type"] == "application/problem+json"


def test_the_document_names_what_may_be_asked_and_refused(server):
    _, document = server.ask("/openapi.json")
    route = document["paths"]["/v1/ner"]["post"]
    assert route["requestBody"]["content"]["application/json"]
    assert {"200", "400", "404", "408", "413", "422", "429", "503"} <= route["responses"].keys()
    assert "application/problem+json" in route["responses"]["422"]["content"]
    schemas = document["components"]["schemas"]
    assert {"Problem", "NerRequest", "NerAnswer"} <= schemas.keys()
    assert "HTTPValidationError" not in schemas

"""A request of each route that takes a body by POST, taken from the OpenAPI document."""

import copy
from functools import cache

from serving.app import create_app
from serving.engine import Engine

FINE_TUNED = {
    **dict.fromkeys(("/v1/classify", "/predict", "/hf/text-classification"), "sentiment"),
    **dict.fromkeys(("/v1/ner", "/hf/token-classification"), "entities"),
    **dict.fromkeys(("/v1/qa", "/hf/question-answering"), "answers"),
    **dict.fromkeys(("/v1/zero-shot", "/hf/zero-shot-classification"), "entailment"),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), "relevance"),
}
"""The model of each route that needs a fine-tuned one; the others are asked of an encoder."""


@cache
def document():
    """The OpenAPI document, without the admin's routes."""
    return create_app(Engine({})).openapi()


def request_schemas():
    """The schema of the body of each path by POST."""
    schemas = document()["components"]["schemas"]
    posted = {path: each["post"] for path, each in document()["paths"].items() if "post" in each}
    return {path: schemas[_name_of(operation["requestBody"])] for path, operation in posted.items()}


def _name_of(part):
    return part["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]


def example_requests(encoder):
    """The example of each path by POST, by its address, asked of `FINE_TUNED` or of `encoder`."""
    requests = {}
    for path, schema in request_schemas().items():
        body = copy.deepcopy(schema["examples"][0])
        model = FINE_TUNED.get(path, encoder)
        if "model" in schema["properties"]:
            requests[path] = body | {"model": model}
        else:
            requests[f"{path}?model={model}"] = body
    requests["/v1/decode"]["ids"] = [2, 3]  # the vocabularies of tests are small
    return requests

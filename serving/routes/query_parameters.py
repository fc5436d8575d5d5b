"""A query parameter that a route does not have is refused; a misspelt one would do nothing."""

from fastapi import Request

from bert_core.errors import nearest
from serving.problems import RequestError

KNOWN = ("model",)
"""All that the routes of Hugging Face and TEI have."""


async def refuse_unknown_parameters(request: Request) -> None:
    """For a router's `dependencies`: raises `RequestError` for the first that is unknown."""
    for name in request.query_params:
        if name not in KNOWN:
            raise RequestError(
                422,
                "Unknown query parameter",
                f"this address does not have it{nearest(name, KNOWN)}",
                field=name[:64],
                remedy="?model=NAME chooses a model, all else stands in the body",
            )

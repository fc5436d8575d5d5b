"""A typed client of our own routes, blocking and asynchronous."""

from serving.client.asynchronous import AsyncClient
from serving.client.blocking import Client
from serving.client.exchange import (
    AnswerError,
    ClientError,
    NoAnswerError,
    RefusalError,
    UnreachableError,
)
from serving.client.routes import (
    Answered,
    Classified,
    Decoded,
    Explained,
    Features,
    Filled,
    Info,
    Judged,
    NextSentence,
    Relevance,
    Similarity,
    Tagged,
    Tokens,
)
from serving.schemas import QuestionInContext, TextPair

__all__ = [
    "AnswerError",
    "Answered",
    "AsyncClient",
    "Classified",
    "Client",
    "ClientError",
    "Decoded",
    "Explained",
    "Features",
    "Filled",
    "Info",
    "Judged",
    "NextSentence",
    "NoAnswerError",
    "QuestionInContext",
    "RefusalError",
    "Relevance",
    "Similarity",
    "Tagged",
    "TextPair",
    "Tokens",
    "UnreachableError",
]

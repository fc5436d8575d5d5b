"""A model -> what it can be asked: our own routes, and whether pairs of texts or single ones."""

from typing import Literal

from bert_core.tasks.classification import Classification
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from serving.models import ServedModel


def routes_of(model: ServedModel) -> list[str]:
    """The paths of our own routes that a model answers at."""
    task, heads = model.task, model.model.heads
    can = {
        "/v1/classify": isinstance(task, Classification),
        "/v1/ner": isinstance(task, Tagging),
        "/v1/qa": isinstance(task, QuestionAnswering),
        "/v1/fill-mask": "masked_token" in heads,
        "/v1/next-sentence": "next_sentence" in heads,
        "/v1/pseudo-perplexity": "masked_token" in heads,
        "/v1/features": True,
        "/v1/similarity": True,
        "/v1/explain": True,
        "/v1/tokenize": True,
        "/v1/decode": True,
    }
    return [route for route, is_able in can.items() if is_able]


ReadsPairs = bool | Literal["either"]


def reads_pairs(model: ServedModel) -> ReadsPairs | None:
    """Whether a model classifies pairs, not single texts, or either, as the request has it.

    None of one that does not classify.
    """
    if not isinstance(model.task, Classification):
        return None
    known = model.task.reads_pairs
    return "either" if known is None else known

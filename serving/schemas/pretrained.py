"""Requests and answers of the routes that ask an encoder's pre-training heads."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from serving.schemas.choices import Masking
from serving.schemas.fields import (
    Answer,
    InputText,
    ListOf,
    ModelAnswer,
    Request,
    TextPair,
    example,
    refuse_surrogates,
)

Targets = Annotated[
    ListOf[Annotated[str, Field(max_length=200), AfterValidator(refuse_surrogates)]],
    Field(min_length=1, max_length=1000),
]
"""Words, each looked for in the vocabulary; at most as many as may be asked for."""


class FillMaskRequest(Request):
    """Texts with `[MASK]` where a word is missing."""

    model_config = example(inputs="The capital of France is [MASK].")

    inputs: InputText | ListOf[InputText]
    top_k: int = Field(default=5, ge=1, le=1000, description="how many words for each [MASK]")
    targets: Targets | None = Field(
        default=None,
        description="words among which is chosen, each a token of the vocabulary; by default all",
    )


class Candidate(BaseModel):
    """A token that may stand there, its probability, and the text with it."""

    token: str
    id: int
    score: float
    sequence: str


class FilledMask(BaseModel):
    """A `[MASK]`, at the characters from `start` up to before `end`; likeliest tokens first."""

    start: int
    end: int
    candidates: list[Candidate]


class Filled(Answer):
    """The `[MASK]`s of a text, from left to right."""

    masks: list[FilledMask]


class FillMaskAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Filled]


class NextSentenceRequest(Request):
    """Pairs of texts, of which the second may follow the first."""

    model_config = example(inputs={"text": "It rained all night.", "text_pair": "The river rose."})

    inputs: TextPair | ListOf[TextPair]


class NextSentence(Answer):
    """The probability that the second text follows the first."""

    is_next: float


class NextSentenceAnswer(ModelAnswer):
    """One result for each pair, in their order."""

    results: list[NextSentence]


class PseudoPerplexityRequest(Request):
    """Texts that are to be judged by how likely each of their tokens is, given all others."""

    model_config = example(inputs="The river rose after the rain.")

    inputs: InputText | ListOf[InputText]
    masking: Masking = Field(
        default="token",
        description="what is masked when a token is judged: it alone, or the rest of its word too",
    )


class JudgedToken(BaseModel):
    """A token, its characters, and the logarithm of its probability."""

    text: str
    start: int
    end: int
    log_probability: float


class Judged(Answer):
    """How likely a text is; the perplexity is left out of one without tokens."""

    pseudo_log_likelihood: float
    pseudo_perplexity: float | None = None
    tokens: list[JudgedToken]


class PseudoPerplexityAnswer(ModelAnswer):
    """One result for each text, in their order."""

    results: list[Judged]

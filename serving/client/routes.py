"""The routes that a client asks: the options of each, and how its answers are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from serving.client.results import (
    Answered,
    Classified,
    Decoded,
    Explained,
    Features,
    Filled,
    Judged,
    NextSentence,
    Result,
    Similarity,
    Tagged,
    Tokens,
)
from serving.schemas.fields import Aggregation, Masking, OverflowOrError, Pooling, TextPair, Unit
from serving.schemas.tasks import QuestionInContext

R = TypeVar("R", bound=Result)

TextOrPair = str | TextPair | Mapping[str, str]
"""A text, or the fields of a pair."""

QuestionAndContext = QuestionInContext | Mapping[str, str]
"""A question and its context, or a mapping with both."""

AnyText = TypeVar("AnyText", bound=TextOrPair)
AnyPair = TypeVar("AnyPair", bound=TextPair | Mapping[str, str])
AnyQuestion = TypeVar("AnyQuestion", bound=QuestionAndContext)

Content = Mapping[str, Any]
"""An answer as JSON has it."""


class ModelOptions(TypedDict, total=False):
    """`model` is one of the loaded models, and may be left out where one alone can do it."""

    model: str | None


class TextOptions(ModelOptions, total=False):
    """`overflow` says what becomes of a text that is longer than the model reads at once."""

    overflow: OverflowOrError


class ClassifyOptions(TextOptions, total=False):
    """`top_k` is how many labels have their scores, best first; by default all."""

    top_k: int | None


class NerOptions(TextOptions, total=False):
    """`aggregation` is how what is said of sub-words becomes entities; by default `first`."""

    aggregation: Aggregation


class QaOptions(TextOptions, total=False):
    """`top_k` different answers of at most `max_answer_length` tokens; the model has defaults.

    A null score above `null_threshold` means that there is no answer.
    """

    top_k: int
    max_answer_length: int | None
    align_to_words: bool | None
    null_threshold: float | None


class FeaturesOptions(TextOptions, total=False):
    """`strategy` names layers, `unit` and `pooling` what has a vector; `normalize`: of length 1."""

    strategy: str
    unit: Unit
    pooling: Pooling | None
    normalize: bool


class SimilarityOptions(TextOptions, total=False):
    """`strategy` names layers, `pooling` says how tokens become a text's vector."""

    strategy: str
    pooling: Pooling | None


class FillMaskOptions(TextOptions, total=False):
    """`top_k` words for each [MASK]; among `targets`, where they are given."""

    top_k: int
    targets: list[str] | None


class PseudoPerplexityOptions(TextOptions, total=False):
    """`masking` is what is masked when a token is judged: it, or the rest of its word too."""

    masking: Masking


class ExplainOptions(ModelOptions, total=False):
    """`label` is whose output is explained, `layers`, from 1 on, those whose attention is wanted.

    By default the label that the model gives, and all layers.
    """

    label: str | None
    layers: list[int] | None


class TokenizeOptions(ModelOptions, total=False):
    """`add_special_tokens`: [CLS] before, [SEP] behind; the default."""

    add_special_tokens: bool


class DecodeOptions(ModelOptions, total=False):
    """`skip_special_tokens` leaves out [CLS] and its like; the default."""

    skip_special_tokens: bool


@dataclass(frozen=True, eq=False)
class Route(Generic[R]):
    """An address, what may be asked there, and how its answer becomes a result for each item.

    - `fixed` is sent beside the options
    - `field` is that of the items
    - `takes` says whether one item goes as itself, and several as a list (`any`), always as a list
      (`list`), or one by one (`one`)
    - `beside` counts the texts that come with the items of each request
    """

    path: str
    options: type
    read: Callable[[Content], list[R]]
    fixed: Content
    field: str = "inputs"
    takes: str = "any"
    beside: int = 0


def _results(kind: type[R], *shared: str) -> Callable[[Content], list[R]]:
    """Reads results of a kind, each with the model, its version, and what else all share."""

    def read(content: Content) -> list[R]:
        same = {name: content.get(name) for name in ("model", "version", *shared)}
        return [kind.model_validate({**each, **same}) for each in content["results"]]

    return read


def _decoded(content: Content) -> list[Decoded]:
    same = {name: content.get(name) for name in ("model", "version")}
    return [Decoded.model_validate({"text": each, **same}) for each in content["results"]]


def _explained(content: Content) -> list[Explained]:
    return [Explained.model_validate(content)]


CLASSIFY = Route("/v1/classify", ClassifyOptions, _results(Classified), {})
NER = Route("/v1/ner", NerOptions, _results(Tagged), {})
QA = Route("/v1/qa", QaOptions, _results(Answered), {})
FEATURES = Route(
    "/v1/features", FeaturesOptions, _results(Features, "dimensions"), {"encoding": "base64"}
)
SIMILARITY = Route(
    "/v1/similarity",
    SimilarityOptions,
    _results(Similarity, "source"),
    {},
    takes="list",
    beside=1,
)
FILL_MASK = Route("/v1/fill-mask", FillMaskOptions, _results(Filled), {})
NEXT_SENTENCE = Route("/v1/next-sentence", TextOptions, _results(NextSentence), {})
PSEUDO_PERPLEXITY = Route("/v1/pseudo-perplexity", PseudoPerplexityOptions, _results(Judged), {})
EXPLAIN = Route("/v1/explain", ExplainOptions, _explained, {}, takes="one")
TOKENIZE = Route("/v1/tokenize", TokenizeOptions, _results(Tokens), {})
DECODE = Route("/v1/decode", DecodeOptions, _decoded, {}, field="ids")

"""Our routes as a client sees them: options, requests, and a typed result for each item.

Shapes: U units (words or tokens), F features of a vector.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from bert_core.interface import Aggregation, Answer, Masking, OverflowOrError, Pooling, Unit
from bert_core.interface import Answered as AnsweredQuestion
from bert_core.interface import Classified as ClassifiedText
from bert_core.interface import Filled as FilledText
from bert_core.interface import Tagged as TaggedText
from serving.limits import Limits
from serving.schemas import ExplainAnswer, ModelAnswer, QuestionInContext, TextPair
from serving.schemas import Judged as JudgedText
from serving.schemas import NextSentence as JudgedPair
from serving.schemas import Similarity as ComparedText
from serving.schemas import Tokens as TextTokens


def _array_of(encoded: str) -> npt.NDArray[np.float32]:
    """Decodes base64 of little-endian float32."""
    return np.frombuffer(base64.b64decode(encoded, validate=True), "<f4").astype(np.float32)


Vector = Annotated[npt.NDArray[np.float32], PlainValidator(_array_of)]
"""float32 [F]."""


_SHARED_FIELDS = {"n_tokens": 1, "truncated": 2, "model": 3, "version": 4}


class Result(ModelAnswer):
    """The result for one item; `version` is None for a model folder without checksums."""

    model_config = ConfigDict(protected_namespaces=())

    def __repr_args__(self) -> Any:  # noqa: ANN401 - pydantic's own type is not public
        """Specific fields first, without those that are None."""
        shown = [(name, value) for name, value in super().__repr_args__() if value is not None]
        return sorted(shown, key=lambda field: _SHARED_FIELDS.get(field[0] or "", 0))


class Classified(Result, ClassifiedText):
    """The prediction for a text: a `label`, the `labels` that apply, or a `value`."""


class Tagged(Result, TaggedText):
    """The entities of a text, from left to right."""


class Answered(Result, AnsweredQuestion):
    """The answers to a question, best first; empty if the context has none."""


class UnitFeatures(BaseModel):
    """A word or token, its characters, and its vector."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    start: int
    end: int
    vector: Vector


class Features(Result, Answer):
    """The `vector` of a text, or its `units`, each with a vector."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vector: Vector | None = None
    units: list[UnitFeatures] | None = None
    dimensions: int = Field(description="F")

    @property
    def vectors(self) -> npt.NDArray[np.float32]:
        """All vectors, float32 [U, F]; the whole text is one unit by default."""
        rows = [self.vector] if self.units is None else [unit.vector for unit in self.units]
        return np.array(rows, np.float32).reshape(-1, self.dimensions)


class Similarity(Result, ComparedText):
    """The cosine of the angle between a text's vector and that of the `source`."""

    source: Answer


class Filled(Result, FilledText):
    """The `[MASK]`s of a text, from left to right."""


class NextSentence(Result, JudgedPair):
    """The probability that the second text follows the first."""


class Judged(Result, JudgedText):
    """The pseudo-perplexity of a text, and its tokens with their probabilities."""


class Explained(Result, ExplainAnswer):
    """The attention of each head of each layer, and the attribution of each token."""


class Relevance(Result, Answer):
    """How well a document answers a query, 0 to 1; the tokens are those of both."""

    score: float


class Tokens(Result, TextTokens):
    """The tokens of a text."""


class Decoded(Result):
    """The text of token ids."""

    text: str


class _Open(BaseModel):
    """Facts about a server; later servers may add fields."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class ModelInfo(_Open):
    """A loaded model."""

    task: str | None
    labels: list[str]
    heads: list[str]
    sha256: str | None
    version: str | None = None
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_input_length: int


class KnownLimits(Limits):
    """The limits of a server's requests."""

    model_config = ConfigDict(extra="allow")


class Info(_Open):
    """The loaded models by name, and the server's limits."""

    version: str
    models: dict[str, ModelInfo]
    limits: KnownLimits


R = TypeVar("R", bound=Result)

TextOrPair = str | TextPair | Mapping[str, str]
"""A text, or the fields of a pair."""

QuestionAndContext = QuestionInContext | Mapping[str, str]
"""A question and its context, or a mapping with both."""

AnyText = TypeVar("AnyText", bound=TextOrPair)
AnyPair = TypeVar("AnyPair", bound=TextPair | Mapping[str, str])
AnyQuestion = TypeVar("AnyQuestion", bound=QuestionAndContext)

Content = Mapping[str, Any]
"""A decoded JSON object."""


class ModelOptions(TypedDict, total=False):
    """`model` names a loaded model; optional if only one supports the task."""

    model: str | None


class TextOptions(ModelOptions, total=False):
    """`overflow` says how a text is treated that is longer than the model's input."""

    overflow: OverflowOrError


class ClassifyOptions(TextOptions, total=False):
    """`top_k` is the number of labels with scores, best first; all by default."""

    top_k: int | None


class NerOptions(TextOptions, total=False):
    """`aggregation` is how the tags of sub-words become entities; `first` by default."""

    aggregation: Aggregation


class QaOptions(TextOptions, total=False):
    """`top_k` distinct answers of at most `max_answer_length` tokens; the model has defaults.

    A null score above `null_threshold` means no answer.
    """

    top_k: int
    max_answer_length: int | None
    align_to_words: bool | None
    null_threshold: float | None


class FeaturesOptions(TextOptions, total=False):
    """`strategy` names layers, `unit` and `pooling` what has a vector; `normalize` to length 1."""

    strategy: str
    unit: Unit
    pooling: Pooling | None
    normalize: bool


class SimilarityOptions(TextOptions, total=False):
    """`strategy` names layers, `pooling` says how tokens become a text's vector."""

    strategy: str
    pooling: Pooling | None


class FillMaskOptions(TextOptions, total=False):
    """`top_k` words for each [MASK], chosen among `targets` if given."""

    top_k: int
    targets: list[str] | None


class PseudoPerplexityOptions(TextOptions, total=False):
    """`masking` is what is masked to score a token: the token, or the rest of its word too."""

    masking: Masking


class ExplainOptions(ModelOptions, total=False):
    """`label` is the explained output, `layers` (from 1) those whose attention is returned.

    By default the predicted label, and all layers.
    """

    label: str | None
    layers: list[int] | None


class ZeroShotOptions(TextOptions, total=False):
    """`template` says of a text what a label means, which stands at `{}`.

    With `multi_label` each label is true or not by itself.
    """

    template: str
    multi_label: bool


class RelevanceOptions(ModelOptions, total=False):
    """`raw_scores` are what the model says, as it is."""

    raw_scores: bool


class TokenizeOptions(ModelOptions, total=False):
    """`add_special_tokens` adds [CLS] and [SEP]; the default."""

    add_special_tokens: bool


class DecodeOptions(ModelOptions, total=False):
    """`skip_special_tokens` omits [CLS] and the like; the default."""

    skip_special_tokens: bool


@dataclass(frozen=True, eq=False)
class Route(Generic[R]):
    """A path, its options, and how a response becomes a result for each item.

    - `fixed` is sent with the options
    - `field` is the name of the items
    - `takes`: `any` sends one item as itself and several as a list, `list` always sends a list,
      `one` sends one request per item
    - `extra_texts`: number of texts that are sent with the items of each request
    """

    path: str
    options: type
    read: Callable[[Content], list[R]]
    fixed: Content
    field: str = "inputs"
    takes: str = "any"
    extra_texts: int = 0


def _results(kind: type[R], *shared: str) -> Callable[[Content], list[R]]:
    """Reads results of a kind, each with the model, its version and other shared fields."""

    def read(content: Content) -> list[R]:
        same = {name: content.get(name) for name in ("model", "version", *shared)}
        return [kind.model_validate({**result, **same}) for result in content["results"]]

    return read


def _decoded(content: Content) -> list[Decoded]:
    same = {name: content.get(name) for name in ("model", "version")}
    return [Decoded.model_validate({"text": text, **same}) for text in content["results"]]


def _explained(content: Content) -> list[Explained]:
    return [Explained.model_validate(content)]


def _relevances(content: Content) -> list[Relevance]:
    """In the order of the documents, whatever their scores."""
    same = {name: content.get(name) for name in ("model", "version")}
    return [
        Relevance.model_validate(
            {
                "score": each["relevance_score"],
                "n_tokens": each["n_tokens"],
                "truncated": each["truncated"],
                **same,
            }
        )
        for each in sorted(content["results"], key=lambda each: each["index"])
    ]


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
    extra_texts=1,
)
FILL_MASK = Route("/v1/fill-mask", FillMaskOptions, _results(Filled), {})
NEXT_SENTENCE = Route("/v1/next-sentence", TextOptions, _results(NextSentence), {})
PSEUDO_PERPLEXITY = Route("/v1/pseudo-perplexity", PseudoPerplexityOptions, _results(Judged), {})
ZERO_SHOT = Route("/v1/zero-shot", ZeroShotOptions, _results(Classified), {})
RELEVANCE = Route(
    "/v1/rerank",
    RelevanceOptions,
    _relevances,
    {},
    field="documents",
    takes="list",
    extra_texts=1,
)
EXPLAIN = Route("/v1/explain", ExplainOptions, _explained, {}, takes="one")
TOKENIZE = Route("/v1/tokenize", TokenizeOptions, _results(Tokens), {})
DECODE = Route("/v1/decode", DecodeOptions, _decoded, {}, field="ids")

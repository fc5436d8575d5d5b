"""What comes back for each item: what the schemas have, and which version of which model gave it.

Shapes: U units, F numbers of a vector.
"""

import base64
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from serving.limits import Limits
from serving.schemas.fields import Answer, ModelAnswer
from serving.schemas.tasks import Answered as AnsweredQuestion
from serving.schemas.tasks import Classified as ClassifiedText
from serving.schemas.tasks import Filled as FilledText
from serving.schemas.tasks import Judged as JudgedText
from serving.schemas.tasks import NextSentence as JudgedPair
from serving.schemas.tasks import Tagged as TaggedText
from serving.schemas.texts import ExplainAnswer
from serving.schemas.texts import Similarity as ComparedText
from serving.schemas.texts import Tokens as TextTokens


def _array_of(encoded: str) -> npt.NDArray[np.float32]:
    """Numbers, as base64 of little-endian float32."""
    return np.frombuffer(base64.b64decode(encoded, validate=True), "<f4").astype(np.float32)


Vector = Annotated[npt.NDArray[np.float32], PlainValidator(_array_of)]
"""float32 [F]."""


_OF_ALL = ("n_tokens", "truncated", "model", "version")


class Result(ModelAnswer):
    """What is found for one item; `version` is None of a model whose folder has no checksums."""

    model_config = ConfigDict(protected_namespaces=())

    def __repr_args__(self) -> Any:  # noqa: ANN401 - pydantic's own type is not public
        """What was found first, and no fields that say nothing."""
        told = [(name, value) for name, value in super().__repr_args__() if value is not None]
        return sorted(told, key=lambda each: each[0] in _OF_ALL)


class Classified(Result, ClassifiedText):
    """What a text was found to be: a `label`, the `labels` that apply, or a `value`."""


class Tagged(Result, TaggedText):
    """The entities of a text, from left to right."""


class Answered(Result, AnsweredQuestion):
    """The answers to a question, best first; none where the context holds none."""


class UnitFeatures(BaseModel):
    """A word or token, its characters, and its vector."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    start: int
    end: int
    vector: Vector


class Features(Result, Answer):
    """The `vector` of a text, or the `units` it is read in, each with its own."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vector: Vector | None = None
    units: list[UnitFeatures] | None = None
    dimensions: int = Field(description="F")

    @property
    def vectors(self) -> npt.NDArray[np.float32]:
        """All vectors, float32 [U, F]; a text is one unit, unless words or tokens are asked for."""
        rows = [self.vector] if self.units is None else [each.vector for each in self.units]
        return np.array(rows, np.float32).reshape(-1, self.dimensions)


class Similarity(Result, ComparedText):
    """The cosine of the angle between a text's vector and that of the `source`."""

    source: Answer


class Filled(Result, FilledText):
    """The `[MASK]`s of a text, from left to right."""


class NextSentence(Result, JudgedPair):
    """The probability that the second text follows the first."""


class Judged(Result, JudgedText):
    """How likely a text is, and each of its tokens."""


class Explained(Result, ExplainAnswer):
    """What each head of each layer looked at, and which tokens an answer hangs on."""


class Tokens(Result, TextTokens):
    """The tokens of a text."""


class Decoded(Result):
    """The text that ids of tokens are."""

    text: str


class _Open(BaseModel):
    """What a server says of itself; a later one may say more."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class ModelInfo(_Open):
    """A model that is served."""

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
    """Within which limits a server may be asked."""

    model_config = ConfigDict(extra="allow")


class Info(_Open):
    """What is loaded, by name, and within which limits it may be asked."""

    version: str
    models: dict[str, ModelInfo]
    limits: KnownLimits

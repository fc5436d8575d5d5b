"""One vector of each text as its model folder says: what public servers of embeddings answer with.

Shapes: N texts, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice
from bert_core.interface import OverflowOrError
from bert_core.tasks.task import FloatArray
from serving.engine import Engine, Prediction
from serving.errors import RequestError
from serving.models import ServedModel
from serving.text_features import TextFeatures
from serving.validation import Inputs


@dataclass(frozen=True)
class Wanted:
    """How texts are to be read, and their vectors to be written.

    - `normalize`, whether vectors get the length 1; None leaves it to the folder
    - `dimensions`, the first so many numbers of each, for models that were trained for it
    - `prompt_name`, which of the folder's prompts stands before each text; None is its default
    """

    normalize: bool | None = None
    dimensions: int | None = None
    overflow: OverflowOrError = "error"
    prompt_name: str | None = None


@dataclass(frozen=True)
class SentenceVectors:
    """Vectors float32 [N, D], the tokens of each text, and which of them lost some.

    Where an answer has no place for them, `headers` say what every answer of ours does.
    """

    vectors: FloatArray
    num_tokens: list[int]
    truncated: list[bool]
    headers: dict[str, str]


async def sentence_vectors(
    engine: Engine, model: ServedModel, inputs: Inputs, wanted: Wanted
) -> SentenceVectors:
    """The vector of each text.

    Raises `RequestError` for more dimensions than there are and a prompt that the folder lacks, and
    what `Engine.features` does.
    """
    pooling = model.sentence_pooling
    size = pooling.dimensions(model.config.hidden_size)
    if wanted.dimensions is not None and wanted.dimensions > size:
        detail = f"{wanted.dimensions}, and the vectors of {model.name} have {size}"
        remedy = "ask for fewer, or leave it out"
        raise RequestError(422, "Too many dimensions", detail, field="dimensions", remedy=remedy)
    normalize = pooling.normalize if wanted.normalize is None else wanted.normalize
    is_changed = wanted.dimensions is not None or bool(pooling.dense)
    choice = FeatureChoice(
        pooling=pooling.pooling,
        normalize=normalize and not is_changed,
        max_length=pooling.max_length,
    )
    inputs = with_prompt(model, inputs, wanted.prompt_name)
    found = await engine.features(model, choice, inputs, wanted.overflow)
    empty = np.empty((0, model.config.hidden_size), np.float32)
    vectors = np.concatenate([empty, *(text.vectors for text in found)])
    if is_changed:
        vectors = pooling.finish(vectors, normalize=normalize, dimensions=wanted.dimensions)
    num_tokens, truncated = [text.num_tokens for text in found], [text.truncated for text in found]
    return SentenceVectors(vectors, num_tokens, truncated, read_headers(found))


def with_prompt(model: ServedModel, inputs: Inputs, name: str | None) -> Inputs:
    """Texts with the folder's prompt of this name before each, or its default one.

    Raises `RequestError` for a name that the folder does not have.
    """
    try:
        prompt = model.sentence_pooling.prompt(name)
    except UserError as error:
        if name is None:
            raise
        raise RequestError(
            422,
            "Unknown prompt",
            f"{model.name} has no prompt {name}",
            field="prompt_name",
            remedy=error.remedy,
        ) from error
    if not prompt:
        return inputs
    return inputs.map(lambda item: prompt + item if isinstance(item, str) else item)


def read_headers(texts: Sequence[Prediction | TextFeatures]) -> dict[str, str]:
    """Headers that say how many tokens texts have, and whether any of them lost some."""
    num_tokens, is_cut = sum(text.num_tokens for text in texts), any(t.truncated for t in texts)
    return {"X-N-Tokens": str(num_tokens), "X-Truncated": str(is_cut).lower()}

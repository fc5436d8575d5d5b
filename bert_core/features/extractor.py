"""Features of texts from a model folder, in micro-batches of similar lengths, without padding.

Shapes: K layers that are read, U units (tokens, words or texts), F feature size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.features.states import states_at_places
from bert_core.features.units import (
    POOLINGS,
    Tokens,
    UnitRows,
    cut_texts,
    cut_tokens,
    default_pooling,
    unit_rows,
)
from bert_core.interface import OverflowOrError, Pooling, Unit
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model.strategies import STRATEGIES, Strategy
from bert_core.model.tagger import FeatureTagger
from bert_core.model_folder import load_model_folder
from bert_core.quantization import for_inference, read_precision
from bert_core.tasks.encoded_rows import PREDICTION_TOKENS
from bert_core.tasks.task import FloatArray
from bert_core.text.rng import IntArray

_SHORTEST = 8


@dataclass(frozen=True)
class FeatureChoice:
    """Selects the features to compute.

    - `strategy`, the layers that are read; `layer_weights` [K] of a learned one, by default equal
    - `unit`, what gets a vector, and `pooling` of its tokens, None being the unit's default
    - `prompt`, which stands before each text
    - `normalize`, whether vectors get the length 1
    - `max_length`, the tokens of a row, by default as many as the encoder has positions for
    - `stride`, the tokens from one window of a long text to the next, by default half a window
    """

    strategy: Strategy = STRATEGIES["last"]
    unit: Unit = "text"
    pooling: Pooling | None = None
    prompt: str = ""
    normalize: bool = False
    max_length: int | None = None
    stride: int | None = None
    layer_weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class EncodedTexts:
    """Texts as tokens, what a cut has left of them, and their rows.

    `num_tokens` [N] are those of whole texts, special ones too; `too_long` [N] says which are more
    than one row has. Of texts that came as ids there are no `texts`, and `tokens` is None.
    """

    texts: Sequence[str]
    tokens: Tokens | None
    rows: UnitRows
    num_tokens: IntArray
    too_long: npt.NDArray[np.bool_]
    is_cut: bool


@dataclass(frozen=True)
class Extractor:
    """An encoder on a device, its tokenizer, and which features to read off it."""

    encoder: Encoder
    tokenizer: Tokenizer
    device: torch.device
    choice: FeatureChoice
    max_tokens: int = PREDICTION_TOKENS
    autocast_dtype: torch.dtype | None = None

    @property
    def feature_size(self) -> int:
        """F, the numbers of one feature."""
        config = self.encoder.config
        return self.choice.strategy.feature_size(config.num_hidden_layers, config.hidden_size)

    @property
    def layer_weights(self) -> tuple[float, ...] | None:
        """The weights [K] of the layers in a weighted sum; None where there is none."""
        strategy = self.choice.strategy
        if self.choice.layer_weights is not None or not strategy.is_learned:
            return self.choice.layer_weights
        count = len(strategy.layers_of(self.encoder.config.num_hidden_layers))
        return (1 / count,) * count

    def of_texts(self, texts: Sequence[str]) -> FloatArray:
        """The features of each text, or of its words or tokens, float32 [U, F]."""
        return self.of_rows(self.rows(self.tokens(texts)))

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenizes texts, the prompt before each."""
        prompt = self.choice.prompt
        given = [prompt + text for text in texts] if prompt else texts
        return cut_texts(self.tokenizer, given, offsets=self.choice.unit != "text")

    @property
    def max_length(self) -> int:
        """The most tokens of a row."""
        return self.choice.max_length or self.encoder.config.max_position_embeddings

    def encode(self, texts: Sequence[str], overflow: OverflowOrError) -> EncodedTexts:
        """The rows of texts, in windows where they are long, unless `overflow` cuts a side."""
        whole = self.tokens(texts)
        tokens = cut_tokens(whole, self.max_length - 2, overflow)
        num_tokens = whole.lengths + 2
        too_long = num_tokens > self.max_length
        return EncodedTexts(
            texts, tokens, self.rows(tokens), num_tokens, too_long, tokens is not whole
        )

    def rows(self, tokens: Tokens) -> UnitRows:
        """Encodes tokenized texts as rows, with the units that were selected."""
        choice = self.choice
        return unit_rows(
            tokens,
            self.tokenizer,
            unit=choice.unit,
            pooling=choice.pooling or default_pooling(choice.unit),
            max_length=self.max_length,
            stride=choice.stride,
        )

    def of_rows(self, rows: UnitRows) -> FloatArray:
        """The features of the units of rows, float32 [U, F].

        A unit without a token, such as a word that the tokenizer makes nothing of, has zeros.
        """
        choice = self.choice
        weights = None
        if choice.layer_weights is not None:
            weights = torch.tensor(choice.layer_weights, device=self.device)
        features = UnitFeatures(rows, self.feature_size, self.device)
        computed = states_at_places(
            self.encoder,
            rows.rows,
            choice.strategy.layers_of(self.encoder.config.num_hidden_layers),
            device=self.device,
            max_tokens=self.max_tokens,
            autocast_dtype=self.autocast_dtype,
        )
        for items, _, states in computed:
            found = choice.strategy.combine(states, weights)
            features.add(rows.rows.places_of(items), found)
        return features.pooled(normalize=choice.normalize)


class UnitFeatures:
    """The features of units [U, F], pooled from those of their places as these are computed."""

    def __init__(self, rows: UnitRows, feature_size: int, device: torch.device) -> None:
        self._rows = rows
        self._is_maximum = rows.pooling == "max"
        start = -torch.inf if self._is_maximum else 0.0
        shape = rows.num_units, feature_size
        self._features = torch.full(shape, start, dtype=torch.float32, device=device)

    def add(self, places: IntArray, found: Tensor) -> None:
        """Takes in the features [P, F] of these of the rows' places, each of them once."""
        units = torch.from_numpy(self._rows.units[places]).to(self._features.device)
        if self._is_maximum:
            units = units.unsqueeze(1).expand_as(found)
            self._features.scatter_reduce_(0, units, found, "amax")
        else:
            self._features.index_add_(0, units, found)

    def pooled(self, *, normalize: bool) -> FloatArray:
        """The features of all units, float32 [U, F], when all places have been added.

        A unit without a token has zeros.
        """
        counts = np.bincount(self._rows.units, minlength=self._rows.num_units)
        places = torch.from_numpy(counts).to(self._features.device).unsqueeze(1)
        if self._is_maximum:
            self._features.masked_fill_(places == 0, 0)
        else:
            self._features /= places.clamp(min=1)
        if normalize:
            self._features = F.normalize(self._features, dim=1)
        return self._features.cpu().numpy()


def load_extractor(
    folder: Path,
    choice: FeatureChoice,
    *,
    device: torch.device | None = None,
    max_tokens: int = PREDICTION_TOKENS,
    autocast_dtype: torch.dtype | None = None,
) -> Extractor:
    """Opens a model folder, ours or one of `transformers`; on the CPU without a device.

    A weighted sum whose weights are not given has those that a tagger in the folder has learned for
    the same layers, and equal ones where there is none.

    In int8 where the folder says so. Raises `UserError` for a folder that is damaged, for a choice
    that the encoder cannot give, and for int8 elsewhere than on the CPU.
    """
    config, model, tokenizer = load_model_folder(folder)
    check_choice(choice, config)
    if choice.strategy.is_learned and choice.layer_weights is None:
        layers = choice.strategy.layers_of(config.num_hidden_layers)
        choice = replace(choice, layer_weights=learned_weights(model, layers))
    device = device or torch.device("cpu")
    encoder = for_inference(model, read_precision(folder), device).encoder
    return Extractor(encoder, tokenizer, device, choice, max_tokens, autocast_dtype)


def learned_weights(model: Bert, layers: tuple[int, ...]) -> tuple[float, ...] | None:
    """Returns a tagger's weights for exactly these layers; None if the model has none."""
    for head in model.heads.values():
        if isinstance(head, FeatureTagger) and tuple(head.layers.tolist()) == layers:
            return None if head.mix is None else tuple(head.mix.weights.tolist())
    return None


def check_choice(choice: FeatureChoice, config: ModelConfig) -> None:
    """Raises `UserError` for features that an encoder of this shape cannot compute."""
    layers = choice.strategy.layers_of(config.num_hidden_layers)
    weights, strategy = choice.layer_weights, choice.strategy.name
    if weights is not None and not choice.strategy.is_learned:
        raise UserError(f"{strategy} has no weights of layers", "layer_weights", "leave it out")
    if weights is not None and len(weights) != len(layers):
        raise UserError(
            f"{strategy} reads {len(layers)} layers, not {len(weights)}",
            "layer_weights",
            "give one number for each",
        )
    known = POOLINGS[choice.unit]
    if choice.pooling is not None and choice.pooling not in known:
        remedy = f"take {' or '.join(known)}" if known else "leave it out"
        raise UserError(f"a {choice.unit} is not pooled by {choice.pooling}", "pooling", remedy)
    longest = config.max_position_embeddings
    if choice.max_length is not None and not _SHORTEST <= choice.max_length <= longest:
        raise UserError(
            f"rows of {choice.max_length} tokens",
            "max_length",
            f"it must be between {_SHORTEST} and the {longest} positions of the encoder",
        )
    room = (choice.max_length or longest) - 2
    if choice.stride is not None and not 1 <= choice.stride <= room:
        raise UserError(
            f"windows {choice.stride} tokens apart", "stride", f"it must be between 1 and {room}"
        )

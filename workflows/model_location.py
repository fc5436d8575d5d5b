"""What a user types after --model goes in; a local model folder comes out."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bert_core.config import ModelConfig
from bert_core.disk import file_sha256
from bert_core.errors import UserError
from bert_core.hub import SCHEME, fetch_hub_model
from bert_core.tokenizer import tokenizer_hash
from serving.registry import fetch_model


@dataclass(frozen=True)
class LocatedModel:
    """A model folder; `version` is its address at MLflow or the Hub, if it is from there.

    `models:/NAME/3`, or `hf://OWNER/NAME@COMMIT`.
    """

    folder: Path
    version: str | None = None


def locate_model(model: str, storage: Path, tracking_uri: str) -> Path:
    """The folder of a model: its path, an address, or a run of the storage by its name.

    Addresses are `models:/NAME@ALIAS` and `hf://OWNER/NAME[@REVISION]`.

    Raises `UserError` where there is none.
    """
    return located_model(model, storage, tracking_uri).folder


def located_model(model: str, storage: Path, tracking_uri: str) -> LocatedModel:
    """As `locate_model`, and which version an address stood for."""
    if model.startswith(SCHEME):
        of_hub = fetch_hub_model(model)
        return LocatedModel(of_hub.folder, of_hub.version)
    if model.startswith("models:/"):
        fetched = fetch_model(model, tracking_uri, storage / "models")
        return LocatedModel(fetched.folder, f"models:/{fetched.name}/{fetched.version}")
    path = Path(model).expanduser()
    if path.is_dir():
        return LocatedModel(path)
    of_run = storage / "runs" / model / "model"
    if "/" in model or not of_run.is_dir():
        raise UserError(
            "no such model",
            model,
            "give a model folder, models:/NAME@ALIAS, hf://OWNER/NAME, or a finished run's name",
        )
    return LocatedModel(of_run)


def model_name(folder: Path) -> str:
    """What people call a model: its folder, or the run that it is of."""
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name


@dataclass(frozen=True)
class EncoderFolder:
    """The model folder that a run starts from.

    `version` is its address at MLflow or the Hub, as in `LocatedModel`. `heads` are the names of
    its heads, `sha256` is of tokenizer, configuration and weights.
    """

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    sha256: str
    heads: tuple[str, ...]
    version: str | None = None


def open_encoder(model: str, storage: Path, tracking_uri: str) -> EncoderFolder:
    """Opens the encoder that `locate_model` finds.

    Raises `UserError` where there is none, and for a damaged one.
    """
    from bert_core.model_folder import load_model_folder  # loads torch

    source = located_model(model, storage, tracking_uri)
    path = source.folder
    config, loaded, tokenizer = load_model_folder(path)
    heads, sha256 = tuple(loaded.heads), model_hash(path, tokenizer)
    return EncoderFolder(path, config, tokenizer, sha256, heads, source.version)


def model_hash(folder: Path, tokenizer: Tokenizer) -> str:
    """The sha256 of what answers depend on in a model: vocabulary, settings and weights."""
    from bert_core.model_folder import CONFIG, weight_files  # loads torch

    total = hashlib.sha256(tokenizer_hash(tokenizer).encode())
    for file in (folder / CONFIG, *weight_files(folder)):
        total.update(file_sha256(file).encode())
    return total.hexdigest()

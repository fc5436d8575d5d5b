"""The modules of a sentence-transformers folder, which stand behind its encoder.

modules.json lists them, and each has a folder with its configuration and weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from bert_core.errors import UserError
from bert_core.hugging_face.family import read_weights_header
from bert_core.interface import Pooling
from bert_core.strict_files import RESTORE, is_plain_name, read_json, read_json_object
from bert_core.tokenizer_settings import MODULES, rewrite_command

PACKAGE = "sentence_transformers."
SENTENCE_SETTINGS = "config_sentence_transformers.json"
SWITCH = "pooling_mode_"
"""How the names of poolings begin in older folders."""

_MODES: dict[str, Pooling] = {"cls": "cls", "cls_token": "cls", "max": "max", "max_tokens": "max"}
_MODES |= {"mean": "mean", "mean_tokens": "mean"}

_ACTIVATIONS = {
    "torch.nn.modules.activation.GELU": F.gelu,
    "torch.nn.modules.activation.ReLU": F.relu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": torch.nn.Identity(),
}
_USUAL_ACTIVATION = "torch.nn.modules.activation.Tanh"

_MOST_MODULES = 20
_TAKE_FEATURES = "take features at /v1/features instead, or another model"


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear map of vectors and its activation."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    def __call__(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Maps vectors [N, D] to others, of as many dimensions as the weight has rows."""
        with torch.inference_mode():
            return self.map(torch.from_numpy(vectors)).numpy()

    def map(self, vectors: Tensor) -> Tensor:
        """As a call, of tensors."""
        return _ACTIVATIONS[self.activation](F.linear(vectors, self.weight, self.bias))


def modules_of(folder: Path) -> list[tuple[str, Path]]:
    """The kinds of modules after the encoder, and their folders."""
    path = folder / MODULES
    modules = read_json(path)
    if not isinstance(modules, list):
        raise UserError("no JSON list", str(path), RESTORE)
    if len(modules) > _MOST_MODULES:
        raise refusal(f"{len(modules):,} modules", path)
    found = []
    for module in modules:
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        if not kind.startswith(PACKAGE):
            raise refusal(f"the module {kind or module!r}", path)
        name = kind.rpartition(".")[2]
        part = str(module.get("path", ""))
        is_first = not found
        if is_first and name == "MLMTransformer":
            remedy = "take embed_sparse, /embed_sparse, or another model"
            raise UserError("a model of sparse vectors", str(folder), remedy)
        if is_first and name == "Transformer" and part:
            what, remedy = "an encoder in a folder of its own", rewrite_command(folder, folder)
            raise UserError(f"{what}, {part}", str(path), remedy)
        if is_first and name != "Transformer":
            raise refusal(f"the first module {name}", path)
        if not is_first and not is_plain_name(part):
            raise refusal(f"the folder {part!r} of {name}", path)
        found.append((name, folder / part))
    return found[1:]


def pooling_mode(config: Mapping[str, Any], path: Path, prompts: Mapping[str, str]) -> Pooling:
    """The pooling in a configuration, in its new form or its old one."""
    if not config.get("include_prompt", True) and any(prompts.values()):
        raise refusal("a pooling without the tokens of the prompt", path)
    named = config.get("pooling_mode")
    if named is None:
        named = [
            name.removeprefix(SWITCH)
            for name, is_on in config.items()
            if name.startswith(SWITCH) and is_on
        ]
        has_width = {"word_embedding_dimension", "embedding_dimension"} & config.keys()
        named = named or (["mean"] if has_width else [])
    modes = [str(each) for each in (named if isinstance(named, list) else [named])]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise refusal(f"the pooling {' and '.join(modes)[:60] or 'none'}", path)
    return _MODES[modes[0]]


def read_dense(path: Path, width: int, output: str = "sentence_embedding") -> Dense:
    """The map in a folder, of vectors with as many dimensions as `width`; `output` is their name.

    Raises `UserError` for one that is damaged, or not computed here.
    """
    config = module_config(path)
    check_names(config, path, output)
    activation = config.get("activation_function", _USUAL_ACTIVATION)
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise refusal(f"the activation {str(activation)[:60]}", path)
    if config.get("use_residual"):
        raise refusal("Dense with use_residual", path)
    try:
        header = read_weights_header(path / "model.safetensors")
        wanted = (config["out_features"], config["in_features"])
    except (OSError, KeyError, ValueError) as error:
        remedy = "write the folder again with sentence-transformers, which makes safetensors"
        raise UserError("no weights of Dense", str(path / "model.safetensors"), remedy) from error
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": wanted}
    if config.get("bias", True):
        shapes["linear.bias"] = wanted[:1]
    if {name: each.shape for name, each in header.items()} != shapes or wanted[1] != width:
        raise UserError("weights of another Dense", str(path), "restore the folder")
    weights = {name: each.float() for name, each in load_file(path / "model.safetensors").items()}
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    if not len(weight) or not all(bool(each.isfinite().all()) for each in weights.values()):
        raise UserError("weights of Dense that are no numbers", str(path), "restore the folder")
    return Dense(weight, bias, activation)


def module_config(part: Path) -> dict[str, Any]:
    """What the configuration of a module says; nothing where there is none."""
    return read_json_object(part / "config.json", is_optional=True)


def check_names(config: Mapping[str, Any], path: Path, output: str = "sentence_embedding") -> None:
    """Raises `UserError` for a module that maps something else than the vectors of texts."""
    usual = {"module_input_name": "sentence_embedding", "module_output_name": output}
    for name, value in usual.items():
        if config.get(name) not in (None, value):
            raise refusal(f"{name} {config[name]!r}", path)


def refusal(what: str, path: Path) -> UserError:
    """The error of a model that is not computed here."""
    return UserError(f"not supported of sentence-transformers: {what}", str(path), _TAKE_FEATURES)

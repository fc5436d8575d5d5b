"""How a sentence-transformers folder pools a text into one vector: modules.json and its files.

Public embedding servers follow these files, so that clients need not repeat the settings.
Shapes: N texts, D dimensions.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_core.errors import UserError
from bert_core.hugging_face.cross_encoder import cross_encoder_pooling
from bert_core.hugging_face.sentence_modules import (
    PACKAGE,
    SENTENCE_SETTINGS,
    SWITCH,
    Dense,
    check_names,
    module_config,
    modules_of,
    pooling_mode,
    read_dense,
    refusal,
)
from bert_core.interface import Pooling
from bert_core.strict_files import is_plain_name, read_json, read_json_object
from bert_core.tasks.task import FloatArray
from bert_core.tokenizer_settings import (
    MODULES,
    TRANSFORMER_SETTINGS,
    longest_row,
    read_transformer_settings,
)

_LONGEST_PROMPT = 10_000


@dataclass(frozen=True)
class SentencePooling:
    """The pooling of a text's tokens, whether its vector gets the length 1, the tokens of a row.

    `dense` maps come between the two. `prompts` by name are prefixes of texts; without a name it is
    the `default_prompt`, if there is one. `max_length` is None where the folder does not say it.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def dimensions(self, hidden_size: int) -> int:
        """D, given the width of the encoder."""
        return len(self.dense[-1].weight) if self.dense else hidden_size

    def finish(
        self, vectors: FloatArray, *, normalize: bool, dimensions: int | None = None
    ) -> FloatArray:
        """Applies the maps to pooled vectors [N, H], truncates to `dimensions`, and normalizes."""
        for dense in self.dense:
            vectors = dense(vectors)
        vectors = vectors[:, :dimensions]
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, 1e-12)
        return vectors

    def search_prompts(self) -> tuple[str, str]:
        """The prefixes of a query and of a passage, whose prompt is `document` or `passage`."""
        usual = self.prompts.get(self.default_prompt or "", "")
        passage = self.prompts.get("document", self.prompts.get("passage", usual))
        return self.prompts.get("query", usual), passage

    def prompt(self, name: str | None) -> str:
        """Returns the prefix of each text. Raises `UserError` for an unknown name."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self.prompts:
            known = f"there are {', '.join(self.prompts)}" if self.prompts else "leave it out"
            raise UserError("no such prompt", str(name), known)
        return self.prompts[name]


def read_sentence_pooling(folder: Path, positions: int) -> SentencePooling:
    """Reads a folder's pooling; mean pooling if it is not from sentence-transformers.

    Rows are no longer than `positions`. Raises `UserError` for what we would have to do otherwise
    than the folder says.
    """
    said = read_prompts(folder, positions)
    if not os.path.lexists(folder / MODULES):
        return said
    _refuse_other_encoders(folder)
    if cross_encoder_pooling(folder):
        remedy = "score pairs of texts with it, or take another model"
        raise UserError("a cross-encoder, which has no vectors of texts", str(folder), remedy)
    found: dict[str, Any] = {}
    dense: list[Dense] = []
    for kind, part in modules_of(folder):
        if found.get("normalize") and kind != "Normalize":
            raise refusal(f"the module {kind} after Normalize", folder / MODULES)
        if kind == "Pooling" and "pooling" not in found:
            found["pooling"] = pooling_mode(module_config(part), part, said.prompts)
        elif kind == "Dense" and "pooling" in found:
            of_encoder = read_json_object(folder / "config.json").get("hidden_size", 768)
            dense.append(read_dense(part, len(dense[-1].weight) if dense else of_encoder))
        elif kind == "Normalize" and "pooling" in found:
            found["normalize"] = True
            check_names(module_config(part), part)
        else:
            raise refusal(f"the module {kind} in this place", folder / MODULES)
    if "pooling" not in found:
        raise refusal("no module Pooling", folder / MODULES)
    return replace(said, **found, dense=tuple(dense))


def read_prompts(folder: Path, positions: int) -> SentencePooling:
    """Reads the prompts and the longest row of a folder, whatever makes its vectors."""
    longest = longest_row(folder, positions)
    said = SentencePooling(max_length=longest if longest < positions else None)
    if not os.path.lexists(folder / MODULES):
        return said
    settings = read_json_object(folder / SENTENCE_SETTINGS, is_optional=True)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str) and len(prompt) <= _LONGEST_PROMPT for prompt in prompts.values()
    ):
        what = f"prompts that are no texts of up to {_LONGEST_PROMPT:,} characters"
        raise UserError(what, str(folder / SENTENCE_SETTINGS), "fix the file")
    name = settings.get("default_prompt_name")
    if name is not None and not isinstance(name, str):
        what = f"default_prompt_name {str(name)[:60]}"
        raise UserError(what, str(folder / SENTENCE_SETTINGS), "give the name of a prompt")
    said = replace(said, prompts=prompts, default_prompt=name)
    said.prompt(name)
    return said


def read_sparse_pooling(folder: Path, positions: int) -> SentencePooling:
    """As `read_prompts`, of a folder whose words are weighed by the masked-token head.

    Raises `UserError` for weights that are made otherwise than SPLADE's, the largest log(1 + relu).
    """
    said = read_prompts(folder, positions)
    modules = read_json(folder / MODULES) if os.path.lexists(folder / MODULES) else []
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")) if isinstance(module, dict) else ""
        path = str(module.get("path", "")) if isinstance(module, dict) else ""
        if kind.endswith(".SpladePooling") and is_plain_name(path):
            config = module_config(folder / path)
            for name, usual in (("pooling_strategy", "max"), ("activation_function", "relu")):
                if config.get(name, usual) != usual:
                    raise refusal(f"{name} {str(config[name])[:40]}", folder / path)
    return said


def sentence_modules(pooling: SentencePooling, hidden_size: int) -> dict[str, Any]:
    """The JSON files, by their path in a folder, that say so; `read_sentence_pooling` reads them.

    Without linear maps. `SentenceTransformer(folder)` reads them too, from version 2 on.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else [])]
    mode = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}[pooling.pooling]
    switches = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"{PACKAGE}models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
        **_settings(pooling, "cosine"),
        "1_Pooling/config.json": {
            "word_embedding_dimension": hidden_size,
            **{f"{SWITCH}{each}": each == mode for each in switches},
        },
        **({"2_Normalize/config.json": {}} if pooling.normalize else {}),
    }


def sparse_modules(prompts: SentencePooling) -> dict[str, Any]:
    """The JSON files by which `SparseEncoder(folder)` makes a weight of each word (SPLADE)."""
    kinds = {"MLMTransformer": "", "SpladePooling": "1_SpladePooling"}
    return {
        MODULES: [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"{PACKAGE}sparse_encoder.models.{kind}",
            }
            for number, (kind, path) in enumerate(kinds.items())
        ],
        **_settings(prompts, "dot", model_type="SparseEncoder"),
        "1_SpladePooling/config.json": {"pooling_strategy": "max", "activation_function": "relu"},
    }


def _settings(said: SentencePooling, similarity: str, **more: str) -> dict[str, Any]:
    return {
        TRANSFORMER_SETTINGS: {"max_seq_length": said.max_length, "do_lower_case": False},
        SENTENCE_SETTINGS: {
            "prompts": dict(said.prompts),
            "default_prompt_name": said.default_prompt,
            "similarity_fn_name": similarity,
            **more,
        },
    }


def _refuse_other_encoders(folder: Path) -> None:
    """Raises `UserError` for settings that change what the encoder computes."""
    path, said = read_transformer_settings(folder)
    usual = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    for name, value in usual.items():
        if said.get(name, value) != value:
            raise refusal(f"{name} {said[name]!r}", path)
    for name in ("model", "tokenizer", "processor", "config"):
        for setting in (f"{name}_args", f"{name}_kwargs"):
            if said.get(setting) and (
                not isinstance(said[setting], dict) or {*said[setting]} - {"attn_implementation"}
            ):
                raise refusal(f"{setting} {str(said[setting])[:60]}", path)
    if said.get("processing_kwargs"):
        raise refusal(f"processing_kwargs {said['processing_kwargs']}", path)

"""ModernBERT in model folders of Hugging Face (Warner et al. 2024, arXiv 2412.13663)."""

from collections.abc import Collection, Mapping
from typing import Any

from bert_core.config import ModelConfig, ModernConfig
from bert_core.hugging_face.family import OUR_LAYER, TAGGER, Family, Tie

_LAYER = "model.layers.{layer}."
_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: "global_rope_theta", _SLIDING: "local_rope_theta"}
_ROPE_TYPE = ("rope_type", "type")
"""How rotations are scaled; files of transformers 4 have the second name."""


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.tok_embeddings.weight": (config.vocab_size, width),
        "model.embeddings.norm.weight": (width,),
        "model.final_norm.weight": (width,),
    }
    of_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn.Wqkv": (3 * width, width),
        "attn.Wo": (width, width),
        "mlp_norm": (width,),
        "mlp.Wi": (2 * inner, width),
        "mlp.Wo": (width, inner),
    }
    for number in range(config.num_hidden_layers):
        shapes |= {
            f"{_LAYER.format(layer=number)}{name}.weight": shape
            for name, shape in of_layer.items()
            if number or name != "attn_norm"  # the embeddings are normed already
        }
    return shapes


def _heads_of(names: Collection[str], architecture: str | None) -> dict[str, str]:
    """Which of our heads theirs are, of the weights of a folder."""
    heads = {}
    if not {"decoder.bias", "decoder.weight"}.intersection(names):
        heads |= {"head.dense": "heads.pooler.dense", "head.norm": "heads.pooler.norm"}
    if architecture == "ModernBertForQuestionAnswering":
        heads["classifier"] = "heads.span.linear"
    return heads


_RENAMED = {
    "layer_norm_eps": "norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_dropout_prob": "mlp_dropout",
}
"""Fields of ours that have another name there."""

_SAME = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "initializer_range", "pad_token_id"),
    "local_attention",
)

_REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
    "decoder_bias": True,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "quantization_config": None,
}
"""What config.json may say of a model that is computed here; all are the defaults when absent."""


def _write_config(config: ModernConfig) -> dict[str, Any]:
    """The fields of their configuration, for transformers 4.48 and later."""
    values = {name: getattr(config, name) for name in _SAME}
    values |= {theirs: getattr(config, ours) for ours, theirs in _RENAMED.items()}
    numbers = range(config.num_hidden_layers)
    kinds = [_SLIDING if number % config.global_every else _FULL for number in numbers]
    rotations = {kind: getattr(config, theta) for kind, theta in _THETAS.items()}
    return values | {
        "embedding_dropout": config.hidden_dropout_prob,
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.global_rope_theta,
        "local_rope_theta": config.local_rope_theta,
        "layer_types": kinds,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in rotations.items()
        },
        "classifier_pooling": "cls",
        # Those of its tokenizer by default, which may not be in this vocabulary.
        **dict.fromkeys(f"{name}_token_id" for name in ("bos", "cls", "eos", "sep")),
        **{name: value for name, value in _REQUIRED.items() if value is not None},
    }


def _read_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModernConfig` that their configuration gives.

    Raises `ValueError` for layers in another order, and for rotations that are scaled.
    """
    fields = {name: values[name] for name in _SAME if name in values}
    theirs = {**_RENAMED, **{name: name for name in _THETAS.values()}}
    theirs["global_every"] = "global_attn_every_n_layers"
    fields |= {ours: values[name] for ours, name in theirs.items() if name in values}
    if values.get("layer_types") is not None:
        count = values.get("num_hidden_layers", ModernConfig().num_hidden_layers)
        fields["global_every"] = _global_every(values["layer_types"], count)
    rotations = _object(values, "rope_parameters")
    for kind, ours in _THETAS.items():
        rotation = _object(rotations, kind)
        _refuse_scaled({name: each for name, each in rotation.items() if name in _ROPE_TYPE})
        if "rope_theta" in rotation:
            fields[ours] = rotation["rope_theta"]
    _refuse_scaled({name: each for name, each in rotations.items() if name not in _THETAS})
    _refuse_scaled(_object(values, "rope_scaling"))
    return fields


def _global_every(kinds: object, count: object) -> int:
    """Of so many layers the first is global, in the list of their `count` kinds."""
    if not isinstance(kinds, list) or len(kinds) != count or not kinds:
        raise ValueError("layer_types have to be a list of num_hidden_layers kinds")
    every = len(kinds) if _FULL not in kinds[1:] else kinds.index(_FULL, 1)
    if kinds != [_SLIDING if number % every else _FULL for number in range(len(kinds))]:
        raise ValueError("layer_types have to be full_attention at every so many layers")
    return every


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What is under a name; nothing where it is absent or null."""
    found = values.get(name)
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"{name} has to be an object")
    return found or {}


def _refuse_scaled(scaling: Mapping[str, Any]) -> None:
    """Raises `ValueError` where anything is said but that rotations are of the usual kind."""
    if any(name not in _ROPE_TYPE or kind != "default" for name, kind in scaling.items()):
        raise ValueError("scaled rotary positions are not supported")


MODERN_BERT = Family(
    model_type="modernbert",
    config=ModernConfig,
    prefix="model.",
    alone=("embeddings.", "layers.", "final_norm."),
    layer=_LAYER,
    modules={
        "encoder.embeddings.word": "model.embeddings.tok_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.norm": "model.final_norm",
        OUR_LAYER + "attention_norm": _LAYER + "attn_norm",
        OUR_LAYER + "query_key_value": _LAYER + "attn.Wqkv",
        OUR_LAYER + "attention_output": _LAYER + "attn.Wo",
        OUR_LAYER + "output_norm": _LAYER + "mlp_norm",
        OUR_LAYER + "intermediate": _LAYER + "mlp.Wi",
        OUR_LAYER + "output": _LAYER + "mlp.Wo",
        # Of these two a folder has one: what comes after it is words or a task's answers.
        "heads.pooler.dense": "head.dense",
        "heads.pooler.norm": "head.norm",
        "heads.masked_token.transform": "head.dense",
        "heads.masked_token.norm": "head.norm",
        "heads.masked_token.decoder": "decoder",
        "heads.masked_token": "decoder",
        "heads.span.linear": "classifier",
        "heads.classifier.linear": "classifier",
        **TAGGER,
    },
    tie=Tie(
        words="model.embeddings.tok_embeddings.weight",
        projection="decoder.weight",
        bias="decoder.bias",
    ),
    shapes=_shapes,
    required=_REQUIRED,
    read_config=_read_config,
    write_config=_write_config,
    class_prefix="ModernBert",
    heads_of=_heads_of,
)

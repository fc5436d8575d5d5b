"""ModernBERT in model folders of Hugging Face (Warner et al. 2024, arXiv 2412.13663)."""

from collections.abc import Collection, Mapping
from typing import Any

from bert_core.config import ModelConfig, ModernConfig
from bert_core.hugging_face.family import OUR_LAYER, TAGGER, Family, Tie

_LAYER = "model.layers.{layer}."
_FULL, _SLIDING = "full_attention", "sliding_attention"


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
    rotations = {_FULL: config.global_rope_theta, _SLIDING: config.local_rope_theta}
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
    fields |= {ours: values[theirs] for ours, theirs in _RENAMED.items() if theirs in values}
    theirs = {"global_every": "global_attn_every_n_layers"}
    theirs |= {name: name for name in ("global_rope_theta", "local_rope_theta")}
    fields |= {ours: values[name] for ours, name in theirs.items() if name in values}
    for ours in ("global_rope_theta", "local_rope_theta"):
        if isinstance(fields.get(ours), int):
            fields[ours] = float(fields[ours])
    kinds = values.get("layer_types")
    if kinds is not None:
        every = len(kinds) if _FULL not in kinds[1:] else kinds.index(_FULL, 1)
        regular = [_SLIDING if number % every else _FULL for number in range(len(kinds))]
        if kinds != regular:
            raise ValueError("layer_types have to be full_attention at every so many layers")
        fields["global_every"] = every
    for kind, ours in ((_FULL, "global_rope_theta"), (_SLIDING, "local_rope_theta")):
        rotation = (values.get("rope_parameters") or {}).get(kind) or {}
        if rotation.get("rope_type", "default") != "default" or values.get("rope_scaling"):
            raise ValueError("scaled rotary positions are not supported")
        if "rope_theta" in rotation:
            fields[ours] = float(rotation["rope_theta"])
    return fields


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

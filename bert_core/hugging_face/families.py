"""The families of models of Hugging Face that are computed here: BERT, RoBERTa and ModernBERT.

RoBERTa (Liu et al. 2019, arXiv 1907.11692), XLM-RoBERTa and CamemBERT are the same under other
names. They compute what BERT does: positions are counted from `pad_token_id` + 1 on, there is one
segment, and a classifier has its own pooler. So they are read, and written as BERT, whose folder
then has the same answers. ModernBERT is of Warner et al. 2024, arXiv 2412.13663.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from bert_core.config import ModelConfig, ModernConfig
from bert_core.hugging_face.family import LEFT_OUT, OUR_LAYER, TAGGER, Family, Tie

_BERT_LAYER = "bert.encoder.layer.{layer}."


def _bert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (config.vocab_size, width),
        "bert.embeddings.position_embeddings.weight": (config.max_position_embeddings, width),
        "bert.embeddings.token_type_embeddings.weight": (config.type_vocab_size, width),
        "bert.embeddings.LayerNorm.weight": (width,),
        "bert.embeddings.LayerNorm.bias": (width,),
    }
    of_layer = _bert_shapes_of_layer(config)
    for number in range(config.num_hidden_layers):
        shapes |= {
            _BERT_LAYER.format(layer=number) + name: shape for name, shape in of_layer.items()
        }
    return shapes


def _bert_shapes_of_layer(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    maps = {f"attention.self.{part}": (width, width) for part in ("query", "key", "value")}
    maps |= {
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    shapes = {f"{name}.weight": shape for name, shape in maps.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in maps.items()}
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


def _refuse_other_direction(values: Mapping[str, Any], is_decoder: object) -> None:
    """Raises `ValueError` where is_causal, which counts in transformers 5, says otherwise."""
    if values.get("is_causal") not in (None, is_decoder):
        reads = "left to right" if is_decoder else "both ways"
        raise ValueError(f"is_causal {values['is_causal']!r} of a model that reads {reads}")


def _read_bert_config(values: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_other_direction(values, values.get("is_decoder", False))
    return {name: values[name] for name in ModelConfig.model_fields & values.keys()}


def _write_bert_config(config: ModelConfig) -> dict[str, Any]:
    is_learned = config.position_embedding == "learned"
    return config.model_dump(exclude={"position_embedding"} if is_learned else None)


BERT = Family(
    model_type="bert",
    config=ModelConfig,
    prefix="bert.",
    alone=("embeddings.", "encoder.", "pooler."),
    layer=_BERT_LAYER,
    modules={
        "encoder.embeddings.word": "bert.embeddings.word_embeddings",
        "encoder.embeddings.position": "bert.embeddings.position_embeddings",
        "encoder.embeddings.segment": "bert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
        OUR_LAYER + "attention_output": _BERT_LAYER + "attention.output.dense",
        OUR_LAYER + "attention_norm": _BERT_LAYER + "attention.output.LayerNorm",
        OUR_LAYER + "intermediate": _BERT_LAYER + "intermediate.dense",
        OUR_LAYER + "output": _BERT_LAYER + "output.dense",
        OUR_LAYER + "output_norm": _BERT_LAYER + "output.LayerNorm",
        "heads.pooler.dense": "bert.pooler.dense",
        "heads.masked_token.transform": "cls.predictions.transform.dense",
        "heads.masked_token.norm": "cls.predictions.transform.LayerNorm",
        "heads.masked_token.decoder": "cls.predictions.decoder",
        "heads.masked_token": "cls.predictions",
        "heads.next_sentence.classifier": "cls.seq_relationship",
        "heads.classifier.linear": "classifier",
        "heads.span.linear": "qa_outputs",
        **TAGGER,
    },
    stacked={
        OUR_LAYER + "query_key_value": tuple(
            f"{_BERT_LAYER}attention.self.{part}" for part in ("query", "key", "value")
        )
    },
    tie=Tie(
        words="bert.embeddings.word_embeddings.weight",
        projection="cls.predictions.decoder.weight",
        bias="cls.predictions.bias",
        second_bias="cls.predictions.decoder.bias",
    ),
    shapes=_bert_shapes,
    required={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "add_cross_attention": False,
        "quantization_config": None,
    },
    read_config=_read_bert_config,
    write_config=_write_bert_config,
    class_prefix="Bert",
    ignored=("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"),
)


def _roberta_name(name: str) -> str:
    return name.replace("bert.", "roberta.", 1) if name.startswith("bert.") else name


def _roberta_position_offset(config: ModelConfig) -> int:
    return config.pad_token_id + 1


def _roberta_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = {_roberta_name(name): shape for name, shape in BERT.shapes(config).items()}
    name = "roberta.embeddings.position_embeddings.weight"
    rows, width = shapes[name]
    return shapes | {name: (rows + _roberta_position_offset(config), width)}


def _read_roberta_config(values: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"pad_token_id": 1, "max_position_embeddings": 512} | BERT.read_config(values)
    positions = fields["max_position_embeddings"]
    if type(positions) is int and type(fields["pad_token_id"]) is int:
        fields["max_position_embeddings"] = positions - fields["pad_token_id"] - 1
    return fields


def _roberta_heads_of(names: Collection[str], architecture: str | None) -> dict[str, str]:
    """A classifier of texts has its pooler inside; one beside it is not asked."""
    del architecture
    if "classifier.out_proj.weight" not in names:
        return {}
    return {
        "classifier.dense": "heads.pooler.dense",
        "classifier.out_proj": "heads.classifier.linear",
        "roberta.pooler.dense": LEFT_OUT,
    }


ROBERTA = replace(
    BERT,
    model_type="roberta",
    prefix="roberta.",
    layer=_roberta_name(BERT.layer),
    modules={ours: _roberta_name(theirs) for ours, theirs in BERT.modules.items()}
    | {
        "heads.masked_token.transform": "lm_head.dense",
        "heads.masked_token.norm": "lm_head.layer_norm",
        "heads.masked_token.decoder": "lm_head.decoder",
        "heads.masked_token": "lm_head",
    },
    stacked={ours: tuple(map(_roberta_name, parts)) for ours, parts in BERT.stacked.items()},
    tie=Tie(
        words="roberta.embeddings.word_embeddings.weight",
        projection="lm_head.decoder.weight",
        bias="lm_head.bias",
        second_bias="lm_head.decoder.bias",
    ),
    shapes=_roberta_shapes,
    read_config=_read_roberta_config,
    class_prefix="Roberta",
    heads_of=_roberta_heads_of,
    position_offset=_roberta_position_offset,
    ignored=tuple(map(_roberta_name, BERT.ignored)),
)

_MODERN_LAYER = "model.layers.{layer}."
_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: "global_rope_theta", _SLIDING: "local_rope_theta"}
_ROPE_TYPE = ("rope_type", "type")
"""How rotations are scaled; files of transformers 4 have the second name."""


def _modern_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
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
            f"{_MODERN_LAYER.format(layer=number)}{name}.weight": shape
            for name, shape in of_layer.items()
            if number or name != "attn_norm"  # the embeddings are normed already
        }
    return shapes


def _modern_heads_of(names: Collection[str], architecture: str | None) -> dict[str, str]:
    """Which of our heads theirs are, of the weights of a folder."""
    heads = {}
    if not {"decoder.bias", "decoder.weight"}.intersection(names):
        heads |= {"head.dense": "heads.pooler.dense", "head.norm": "heads.pooler.norm"}
    if architecture == "ModernBertForQuestionAnswering":
        heads["classifier"] = "heads.span.linear"
    return heads


_MODERN_RENAMED = {
    "layer_norm_eps": "norm_eps",
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_dropout_prob": "mlp_dropout",
}
"""Fields of ours that have another name there."""

_MODERN_SAME = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "initializer_range", "pad_token_id"),
    "local_attention",
)

_MODERN_REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
    "decoder_bias": True,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "quantization_config": None,
}
"""What config.json may say of a model that is computed here; all are the defaults when absent."""


def _write_modern_config(config: ModernConfig) -> dict[str, Any]:
    """The fields of their configuration, for transformers 4.48 and later."""
    values = {name: getattr(config, name) for name in _MODERN_SAME}
    values |= {theirs: getattr(config, ours) for ours, theirs in _MODERN_RENAMED.items()}
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
        "initializer_cutoff_factor": 2.0,  # as `draw_within` has it; TEI needs every field
        # Those of its tokenizer by default, which may not be in this vocabulary: a folder says.
        **dict.fromkeys(f"{name}_token_id" for name in ("bos", "cls", "eos", "sep")),
        **{name: value for name, value in _MODERN_REQUIRED.items() if value is not None},
    }


def _read_modern_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModernConfig` that their configuration gives.

    Raises `ValueError` for layers in another order, and for rotations that are scaled.
    """
    _refuse_other_direction(values, is_decoder=False)
    fields = {name: values[name] for name in _MODERN_SAME if name in values}
    theirs = {**_MODERN_RENAMED, **{name: name for name in _THETAS.values()}}
    theirs["global_every"] = "global_attn_every_n_layers"
    fields |= {ours: values[name] for ours, name in theirs.items() if name in values}
    if values.get("layer_types") is not None:
        count = values.get("num_hidden_layers", ModernConfig().num_hidden_layers)
        fields["global_every"] = _global_every(values["layer_types"], count)
    if "sliding_window" in values:  # in transformers 5 another way to set local_attention
        if type(values["sliding_window"]) is not int:
            raise ValueError("sliding_window has to be a whole number")
        fields["local_attention"] = 2 * values["sliding_window"]
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
    layer=_MODERN_LAYER,
    modules={
        "encoder.embeddings.word": "model.embeddings.tok_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.norm": "model.final_norm",
        OUR_LAYER + "attention_norm": _MODERN_LAYER + "attn_norm",
        OUR_LAYER + "query_key_value": _MODERN_LAYER + "attn.Wqkv",
        OUR_LAYER + "attention_output": _MODERN_LAYER + "attn.Wo",
        OUR_LAYER + "output_norm": _MODERN_LAYER + "mlp_norm",
        OUR_LAYER + "intermediate": _MODERN_LAYER + "mlp.Wi",
        OUR_LAYER + "output": _MODERN_LAYER + "mlp.Wo",
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
    shapes=_modern_shapes,
    required=_MODERN_REQUIRED,
    read_config=_read_modern_config,
    write_config=_write_modern_config,
    class_prefix="ModernBert",
    heads_of=_modern_heads_of,
)

FAMILIES = {
    family.model_type: family
    for family in (
        BERT,
        ROBERTA,
        replace(ROBERTA, model_type="xlm-roberta", class_prefix="XLMRoberta"),
        replace(ROBERTA, model_type="camembert", class_prefix="Camembert"),
        MODERN_BERT,
    )
}
"""By `model_type` of config.json."""


def family_of(config: ModelConfig) -> Family:
    """The family in whose form a model of this architecture is written."""
    (family,) = [each for each in (BERT, MODERN_BERT) if each.config is type(config)]
    return family

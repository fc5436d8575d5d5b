"""BERT in model folders of Hugging Face."""

from collections.abc import Mapping
from typing import Any

from bert_core.config import ModelConfig
from bert_core.hugging_face.family import OUR_LAYER, TAGGER, Family, Tie

_LAYER = "bert.encoder.layer.{layer}."


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (config.vocab_size, width),
        "bert.embeddings.position_embeddings.weight": (config.max_position_embeddings, width),
        "bert.embeddings.token_type_embeddings.weight": (config.type_vocab_size, width),
        "bert.embeddings.LayerNorm.weight": (width,),
        "bert.embeddings.LayerNorm.bias": (width,),
    }
    of_layer = _shapes_of_layer(config)
    for number in range(config.num_hidden_layers):
        shapes |= {_LAYER.format(layer=number) + name: shape for name, shape in of_layer.items()}
    return shapes


def _shapes_of_layer(config: ModelConfig) -> dict[str, tuple[int, ...]]:
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


def _read_config(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in ModelConfig.model_fields & values.keys()}


def _write_config(config: ModelConfig) -> dict[str, Any]:
    is_learned = config.position_embedding == "learned"
    return config.model_dump(exclude={"position_embedding"} if is_learned else None)


BERT = Family(
    model_type="bert",
    config=ModelConfig,
    prefix="bert.",
    alone=("embeddings.", "encoder.", "pooler."),
    layer=_LAYER,
    modules={
        "encoder.embeddings.word": "bert.embeddings.word_embeddings",
        "encoder.embeddings.position": "bert.embeddings.position_embeddings",
        "encoder.embeddings.segment": "bert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
        OUR_LAYER + "attention_output": _LAYER + "attention.output.dense",
        OUR_LAYER + "attention_norm": _LAYER + "attention.output.LayerNorm",
        OUR_LAYER + "intermediate": _LAYER + "intermediate.dense",
        OUR_LAYER + "output": _LAYER + "output.dense",
        OUR_LAYER + "output_norm": _LAYER + "output.LayerNorm",
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
            f"{_LAYER}attention.self.{part}" for part in ("query", "key", "value")
        )
    },
    tie=Tie(
        words="bert.embeddings.word_embeddings.weight",
        projection="cls.predictions.decoder.weight",
        bias="cls.predictions.bias",
        second_bias="cls.predictions.decoder.bias",
    ),
    shapes=_shapes,
    required={
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "add_cross_attention": False,
        "quantization_config": None,
    },
    read_config=_read_config,
    write_config=_write_config,
    class_prefix="Bert",
    ignored=("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"),
)

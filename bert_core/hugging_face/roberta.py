"""RoBERTa and its kin in model folders of Hugging Face (Liu et al. 2019, arXiv 1907.11692).

XLM-RoBERTa and CamemBERT are the same under other names. They compute what BERT does: positions
are counted from `pad_token_id` + 1 on, there is one segment, and a classifier has its own pooler.
So they are read, and written as BERT, whose folder then has the same answers.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from bert_core.config import ModelConfig
from bert_core.hugging_face.bert import BERT
from bert_core.hugging_face.family import LEFT_OUT, Family, Tie


def _theirs(name: str) -> str:
    return name.replace("bert.", "roberta.", 1) if name.startswith("bert.") else name


def _position_offset(config: ModelConfig) -> int:
    return config.pad_token_id + 1


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    shapes = {_theirs(name): shape for name, shape in BERT.shapes(config).items()}
    name = "roberta.embeddings.position_embeddings.weight"
    rows, width = shapes[name]
    return shapes | {name: (rows + _position_offset(config), width)}


def _read_config(values: dict[str, Any]) -> dict[str, Any]:
    fields = {"pad_token_id": 1, "max_position_embeddings": 512} | BERT.read_config(values)
    positions = fields["max_position_embeddings"]
    if type(positions) is int and type(fields["pad_token_id"]) is int:
        fields["max_position_embeddings"] = positions - fields["pad_token_id"] - 1
    return fields


def _heads_of(names: Collection[str], architecture: str | None) -> dict[str, str]:
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
    layer=_theirs(BERT.layer),
    modules={ours: _theirs(theirs) for ours, theirs in BERT.modules.items()}
    | {
        "heads.masked_token.transform": "lm_head.dense",
        "heads.masked_token.norm": "lm_head.layer_norm",
        "heads.masked_token.decoder": "lm_head.decoder",
        "heads.masked_token": "lm_head",
    },
    stacked={ours: tuple(map(_theirs, parts)) for ours, parts in BERT.stacked.items()},
    tie=Tie(
        words="roberta.embeddings.word_embeddings.weight",
        projection="lm_head.decoder.weight",
        bias="lm_head.bias",
        second_bias="lm_head.decoder.bias",
    ),
    shapes=_shapes,
    read_config=_read_config,
    class_prefix="Roberta",
    heads_of=_heads_of,
    position_offset=_position_offset,
    ignored=tuple(map(_theirs, BERT.ignored)),
)

ROBERTA_FAMILIES: tuple[Family, ...] = (
    ROBERTA,
    replace(ROBERTA, model_type="xlm-roberta", class_prefix="XLMRoberta"),
    replace(ROBERTA, model_type="camembert", class_prefix="Camembert"),
)
"""By what their configurations and classes are called; the names of weights are the same."""

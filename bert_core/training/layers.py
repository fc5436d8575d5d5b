"""Which layers of an encoder learn, how fast, and which are drawn anew before they do.

The embeddings are layer 0, the encoder's layers are 1 to L from the lowest, heads are L + 1. The
norm behind the modern block's highest layer belongs to that layer.
"""

import re
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from bert_core.model.bert import Bert
from bert_core.model.encoder import Layer
from bert_core.model.modern import ModernLayer
from bert_core.training.optimization import RATE_SHARE

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def layer_of(name: str, num_layers: int) -> int:
    """The layer that a parameter of `Bert` belongs to, by its name."""
    if found := _LAYER.match(name):
        return int(found[1]) + 1
    if name.startswith("encoder.norm."):
        return num_layers
    return 0 if name.startswith("encoder.") else num_layers + 1


def draw_anew(model: Bert, num_layers: int) -> None:
    """Draws the highest layers and the pooler anew, from torch's generator.

    They know most about pre-training, which is not what follows (Zhang et al. 2021, "Revisiting
    few-sample BERT fine-tuning", arXiv 2006.05987). Without layers nothing is drawn.
    """
    if not num_layers:
        return
    for layer in model.encoder.layers[-num_layers:]:
        assert isinstance(layer, Layer | ModernLayer)
        layer.draw(model.config)
    if isinstance(model.encoder.norm, nn.LayerNorm):
        nn.init.ones_(model.encoder.norm.weight)
    if "pooler" in model.heads:
        del model.heads["pooler"]  # whoever needs one adds it
        model.add_missing_heads(["pooler"])


def freeze(model: Bert, num_layers: int) -> None:
    """Leaves the embeddings and the lowest layers as they are; 0 leaves nothing so.

    Gradients end above them, so the backward pass costs nothing there.
    """
    if not num_layers:
        return
    for name, parameter in model.named_parameters():
        if layer_of(name, model.config.num_hidden_layers) <= num_layers:
            parameter.requires_grad_(False)


def decayed_groups(model: Bert, groups: list[dict[str, Any]], decay: float) -> list[dict[str, Any]]:
    """The groups of an optimizer, each divided by layers, whose rates fall towards the input.

    A layer's `RATE_SHARE` is `decay` to the power of the layers above it, heads included: 1 of
    heads, `decay` of the highest layer (Howard and Ruder 2018; Clark et al. 2020 for encoders).
    """
    num_layers = model.config.num_hidden_layers
    layer = {each: layer_of(name, num_layers) for name, each in model.named_parameters()}
    divided = []
    for group in groups:
        by_layer: dict[int, list[torch.Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            by_layer[layer[parameter]].append(parameter)
        divided += [
            {**group, "params": parameters, RATE_SHARE: decay ** (num_layers + 1 - number)}
            for number, parameters in sorted(by_layer.items())
        ]
    return divided

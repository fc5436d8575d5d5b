"""Folders for other versions of a model: one with other weights, one that is broken."""

import json
import shutil

import torch

from bert_core.model_folder import load_model_folder, publish_folder, save_model_folder


def other_weights(folder, to, change):
    """The model of a folder with its head changed."""
    config, model, tokenizer = load_model_folder(folder)
    task = {"bertline_task": json.loads((folder / "config.json").read_text())["bertline_task"]}
    with torch.no_grad():
        for head in model.heads.values():
            for parameter in head.parameters():
                parameter.mul_(change)
    save_model_folder(to, model, tokenizer, card="", extra_config=task)
    return to


def other_encoder(folder, to):
    """The model of a folder with an encoder of its own, which computes otherwise."""
    config, model, tokenizer = load_model_folder(folder)
    task = {"bertline_task": json.loads((folder / "config.json").read_text())["bertline_task"]}
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.mul_(1.01)
    save_model_folder(to, model, tokenizer, card="", extra_config=task)
    return to


def broken_weights(folder, to):
    """A part of the weights, which the list of checksums says is all: it comes as it was made."""
    written = to.with_name(f".{to.name}.written")
    shutil.copytree(folder, written)
    weights = written / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    publish_folder(written, to)
    return to

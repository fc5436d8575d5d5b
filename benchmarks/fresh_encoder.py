"""A model folder and a size -> an encoder of that size with random weights, for measuring speed."""

from pathlib import Path

import torch

from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model_folder import load_model_folder, save_model_folder


def fresh_encoder(model: Path, size: str, folder: Path) -> Path:
    """Writes an encoder with the vocabulary of `model` into a folder within `folder`."""
    config, _, tokenizer = load_model_folder(model)
    wanted = SIZES[size].model_copy(update={"vocab_size": config.vocab_size})
    torch.manual_seed(0)
    save_model_folder(folder / "encoder", Bert(Encoder(wanted), {}), tokenizer, card="")
    return folder / "encoder"

"""A vocabulary and a size -> an encoder of that size with random weights, for measuring speed."""

from pathlib import Path

import torch

from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model_folder import CONFIG, load_model_folder, save_model_folder
from bert_core.tokenizer import load_tokenizer, num_embeddings


def fresh_encoder(model: Path, size: str, folder: Path) -> Path:
    """Writes an encoder with the vocabulary of `model` into a folder within `folder`.

    `model` is a model folder, or has no more than a tokenizer, so that no weights have to be
    carried to where they are not used.
    """
    if (model / CONFIG).is_file():
        config, _, tokenizer = load_model_folder(model)
        vocab_size = config.vocab_size
    else:
        tokenizer = load_tokenizer(model)
        vocab_size = num_embeddings(tokenizer)
    wanted = SIZES[size].model_copy(update={"vocab_size": vocab_size})
    torch.manual_seed(0)
    save_model_folder(folder / "encoder", Bert(Encoder(wanted), {}), tokenizer, card="")
    return folder / "encoder"

"""Make the inputs of benchmarks: an encoder with random weights, sentences and paragraphs."""

from collections import Counter
from pathlib import Path

import torch

from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model_folder import CONFIG, load_model_folder, save_model_folder
from bert_core.special_tokens import num_embeddings
from bert_core.tasks.catalog import GLUE
from bert_core.text.sources import find_parts
from bert_core.text.texts import divide, read_texts
from bert_core.tokenizer import load_tokenizer

SHORTEST_PARAGRAPH = 20
"""Words; shorter lines are headings."""


def fresh_encoder(model: Path, size: str, folder: Path) -> Path:
    """Write an encoder with random weights and the vocabulary of `model` into `folder`.

    `model` is a model folder or a folder with just a tokenizer; its weights are not used.
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


def sentences_of(path: Path) -> list[str]:
    """Read the sentences of SST-2's training data, or the lines of a text file."""
    if path.is_dir():
        return [example.first for example in GLUE["sst2"].examples(path, "train")]
    return lines_of(path)


def paragraphs_of(path: Path) -> list[str]:
    """Read the paragraphs of a text file, without headings."""
    return [text for text in lines_of(path) if len(text.split()) >= SHORTEST_PARAGRAPH]


def lines_of(path: Path) -> list[str]:
    """Read the lines of a text file, compressed or not."""
    parts = divide(list(find_parts([str(path)], "text", Counter())))
    return [str(text.text) for part in parts for text in read_texts(part, Counter())]

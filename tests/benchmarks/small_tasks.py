"""Small data of each benchmarked task in its published format, and an encoder to fine-tune."""

import json
import random
from pathlib import Path

import torch

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.tokenizer_training import train_wordpiece

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dogs", "run", "far", "away", "slowly"]


def write_encoder(folder: Path, layers: int = 1) -> Path:
    """An encoder of one layer, or more, that knows nothing."""
    tokenizer = train_wordpiece([" ".join(WORDS)] * 3, 120, lowercase=True)
    config = ModelConfig(
        vocab_size=120,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=384,
    )
    torch.manual_seed(0)
    save_model_folder(folder, Bert.for_pretraining(config), tokenizer, card="")
    return folder


def write_data(task: str, folder: Path, *, train: int = 30, dev: int = 12) -> Path:
    """Train and dev of a task, seeded."""
    folder.mkdir(parents=True)
    choose = random.Random(7)
    for split, count in (("train", train), ("dev", dev)):
        WRITERS[task](folder, split, count, choose)
    return folder


def _words(choose: random.Random, longest: int = 20) -> list[str]:
    return choose.choices(WORDS, k=choose.randint(3, longest))


def _write_mrpc(folder: Path, split: str, count: int, choose: random.Random) -> None:
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for number in range(count):
        first, second = " ".join(_words(choose)), " ".join(_words(choose))
        lines.append(f"{number % 2}\t1\t2\t{first}\t{second}")
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def _write_conll(folder: Path, split: str, count: int, choose: random.Random) -> None:
    sentences = (
        "".join(f"{word} NN O {choose.choice(['O', 'B-PER'])}\n" for word in _words(choose))
        for _ in range(count)
    )
    (folder / f"{split}.txt").write_text("\n".join(sentences))


def _write_squad(folder: Path, split: str, count: int, choose: random.Random) -> None:
    paragraphs = []
    for number in range(count):
        words = _words(choose, 60)
        answer = choose.choice(words)
        question = {
            "id": f"{split}-{number}",
            "question": " ".join(_words(choose, 6)),
            "answers": [{"text": answer, "answer_start": len(" ".join(words).split(answer)[0])}],
        }
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    document = {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}
    (folder / f"{split}-v1.1.json").write_text(json.dumps(document))


def _write_sst2(folder: Path, split: str, count: int, choose: random.Random) -> None:
    lines = (f"{' '.join(_words(choose))} \t{number % 2}\n" for number in range(count))
    (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(lines))


WRITERS = {
    "mrpc": _write_mrpc,
    "conll2003": _write_conll,
    "squad": _write_squad,
    "sst2": _write_sst2,
}

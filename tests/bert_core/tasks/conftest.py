"""What the tests of tasks share: a tokenizer of few words, and rows of many lengths."""

import numpy as np
import pytest
import torch
from parity import random_model

from bert_core.tasks import docstring_tasks
from bert_core.tasks.classification import Classification, Text
from bert_core.tokenizer import load_tokenizer
from bert_core.tokenizer_training import train_wordpiece

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dogs", "run", "far", "away", "slowly"]


@pytest.fixture(scope="session")
def tokenizer():
    return train_wordpiece([" ".join(WORDS)] * 3, 120, lowercase=True)


@pytest.fixture(scope="session")
def uncased(minilm_folder):
    """The tokenizer of a published encoder."""
    return load_tokenizer(minilm_folder)


@pytest.fixture(scope="session")
def some_texts():
    """Makes texts, or pairs, of many lengths: the same for the same answers."""

    def make(answers, *, pairs=False):
        choose = np.random.default_rng(3)

        def text():
            return " ".join(choose.choice(WORDS, size=choose.integers(1, 20)))

        return [
            Text(text(), text() if pairs else None, answer, f"line {number}")
            for number, answer in enumerate(answers)
        ]

    return make


@pytest.fixture(scope="session")
def encoded(tokenizer, some_texts):
    """Makes rows of so many texts with the labels no, yes, no, yes, …."""

    def make(count):
        task = Classification(labels=("no", "yes"))
        return task.encode(some_texts(["no", "yes"] * (count // 2)), tokenizer)

    return make


@pytest.fixture
def model(small_config, tokenizer):
    """Makes models with the head of a task, far from their initial weights."""

    def make(task, dtype=torch.float64):
        sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 64}
        return random_model(small_config, task, dtype, **sizes)

    return make


@pytest.fixture
def write_package(tmp_path, monkeypatch):
    """Makes packages of modules' sources; examples that were read before are forgotten."""

    def write(name, modules):
        for module, source in modules.items():
            path = tmp_path / name / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)

    monkeypatch.syspath_prepend(tmp_path)
    for function in (
        docstring_tasks._questions_by_split,
        docstring_tasks._passages_by_split,
        docstring_tasks._tagged_by_split,
    ):
        function.cache_clear()
    return write

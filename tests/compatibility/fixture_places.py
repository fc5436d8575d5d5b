"""Where the fixtures lie, and how the runs among them were started.

The makers and the tests share this, so that both start the same runs.
"""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetuning_runs import FineTuning
from pretraining_runs import Run
from sweep_runs import SweepCommand

from bert_core.text.shards import open_shards

FIXTURES = Path(__file__).parent / "fixtures"
SHARDS = FIXTURES / "shards"
TASK = FIXTURES / "task"
"""`data` and `encoder` of the fine-tuning run and of the sweep."""
MODELS = FIXTURES / "models"
RECORDED = FIXTURES / "recorded.json"
REQUESTS = FIXTURES / "requests.jsonl.gz"
REGISTRY = FIXTURES / "registry.tar.xz"

PRETRAINING_STEPS, FINETUNING_STEPS, RESUME_FROM = 12, 24, {"pretraining": 6, "finetuning": 16}

ASKED = {
    "sentiment": [{"text": "the cat sat on a mat"}, {"text": "dogs run far away"}, {"text": ""}],
    "paraphrase": [{"text": "the cat sat", "text_pair": "a cat sat slowly"}],
    "topics": [{"text": "dogs run on the mat"}],
    "grade": [{"text": "far away"}],
    "entities": [{"text": "the cat sat on a mat"}, {"text": "Zoë and the dogs run"}],
    "answers": [{"question": "the cat", "context": "a cat sat on the mat far away"}],
    "choices": [{"context": "the cat", "choices": ["sat", "run far away", "mat"]}],
    "encoder": [{"text": "the cat [MASK] on a mat"}, {"text": "[MASK] run [MASK]"}],
    "vectors": [{"text": "the cat sat"}, {"text": "dogs"}],
    "sentiment-int8": [{"text": "the cat sat on a mat"}, {"text": "dogs run far away"}],
}
"""What each model folder has answered: rows as MLflow passes them."""


def pretraining_run(storage: Path, shards: Path = SHARDS) -> Run:
    """The pre-training run: one layer of width 32."""
    shape = {"model.hidden_size": 32, "model.num_attention_heads": 2}
    settings = shape | {
        "model.intermediate_size": 64,
        "checkpoint.every_steps": RESUME_FROM["pretraining"],
        "optimizer.warmup_steps": 4,
        "evaluation.num_rows": 32,
    }
    return Run(storage, "pretraining", shards, PRETRAINING_STEPS, settings)


def finetuning_run(storage: Path, task: Path = TASK) -> FineTuning:
    """The fine-tuning run: 2 epochs of 12 steps, registered as `mood`."""
    settings = {"epochs": 2, "checkpoint.every_steps": 8, "tracking.register_as": "mood"}
    return FineTuning(storage, "finetuning", task, FINETUNING_STEPS, settings)


def sweep_command(storage: Path, task: Path = TASK) -> SweepCommand:
    """The sweep of two learning rates, one epoch each."""
    axes = ("optimizer.peak_learning_rate=3e-3,1e-3",)
    return SweepCommand(storage, "sweep", task, 0, {"axis": axes, "epochs": 1})


def assert_alike(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Asserts that two JSON values are equal; floats, to a tolerance.

    An object may have fields that `wanted`, of an older version, does not have.
    """
    if isinstance(wanted, dict):
        assert wanted.keys() <= found.keys()
        for name, value in wanted.items():
            assert_alike(found[name], value, tolerance)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other, tolerance)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    else:
        assert found == wanted


def read_requests() -> list[dict[str, Any]]:
    """The recorded requests with their answers."""
    with gzip.open(REQUESTS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def recorded() -> dict[str, Any]:
    """What the tree that made the fixtures computed from them."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def split_content(folder: Path, split: str) -> dict[str, Any]:
    """Sizes of a split, and sha256 over the tokens and offsets of all its shards."""
    shards, digest = open_shards(folder, split), hashlib.sha256()
    for shard in shards.shards:
        for array in (shard.tokens, shard.sentences, shard.documents):
            digest.update(np.asarray(array, dtype="<i8").tobytes())
    return {
        "documents": shards.num_documents,
        "sentences": shards.num_sentences,
        "tokens": shards.num_tokens,
        "data_hash": shards.data_hash,
        "content": digest.hexdigest(),
    }

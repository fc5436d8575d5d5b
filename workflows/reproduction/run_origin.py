"""The provenance that a run records: code, data, encoder and outcome.

Artifacts next to settings.yaml, and tags with their hashes, which its versions carry too. Lineage
and reproduction read them. They contain no path of this machine.
"""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from bert_core.disk import file_sha256
from bert_core.lineage import read_lineage
from bert_core.text.shards import read_index
from bert_core.tokenizer import tokenizer_hash
from workflows.finetuning.data import EncoderFolder, TaskData
from workflows.model_location import model_name
from workflows.reproduction.code_files import note_code, read_code
from workflows.runs.folder import RunFolder, write_atomically
from workflows.runs.tracker import ARTIFACTS_NAME, without_machine_paths
from workflows.versions.registration import (
    IDENTITY_NAMES,
    PARENT_CONTENT_TAG,
    PARENT_RUN_ID_TAG,
    PARENT_TAG,
    content_hash,
)

if TYPE_CHECKING:
    from bert_core.training.checkpoint import CheckpointInfo

SETTINGS, CODE, DATA, OUTCOME = "settings.yaml", "code.json", "data.json", "outcome.json"
"""Artifacts: the settings, and the files of `note_code`, `describe_…` and `write_outcome`."""
SETTINGS_TAG, CODE_TAG, TOKENIZER_TAG = "settings.sha256", "code.sha256", "tokenizer.sha256"
ENCODER_NAME, ENCODER_SHA256, ENCODER_RUN = "encoder.name", "encoder.sha256", "encoder.run"


def write_origin(folder: RunFolder, data: dict[str, Any], *, trains: bool) -> None:
    """Writes the description of the data, and the code's state if the run is about to train."""
    artifacts = folder.path / ARTIFACTS_NAME
    artifacts.mkdir(exist_ok=True)
    if trains:
        note_code(artifacts / CODE)
    if data:
        write_atomically(artifacts / DATA, json.dumps(data, indent=1))


def origin_tags(folder: RunFolder) -> dict[str, str]:
    """Returns the hashes of settings.yaml and of the code, if they are written."""
    tags = {}
    if folder.settings.exists():
        tags[SETTINGS_TAG] = file_sha256(folder.settings)
    states = read_code(folder.path / ARTIFACTS_NAME / CODE)
    if states:
        tags[CODE_TAG] = states[-1].sha256
    return tags


def encoder_tags(encoder: EncoderFolder) -> dict[str, str]:
    """Returns the tags of a run's encoder: hashes, its version if it has one, and its run.

    The content hash also finds a version that is registered later or elsewhere.
    """
    from bert_core.model_folder import WEIGHTS  # loads torch

    tags = {
        ENCODER_NAME: encoder.version or model_name(encoder.path),
        ENCODER_SHA256: encoder.sha256,
        TOKENIZER_TAG: tokenizer_hash(encoder.tokenizer),
    }
    if all((encoder.path / name).is_file() for name in IDENTITY_NAMES):
        weights = (encoder.path / WEIGHTS).stat()
        tags[PARENT_CONTENT_TAG] = _content(encoder.path, weights.st_mtime_ns)
    lineage = read_lineage(encoder.path)
    known = {
        PARENT_TAG: encoder.version,
        ENCODER_RUN: lineage and lineage.run,
        PARENT_RUN_ID_TAG: lineage and lineage.run_id,
    }
    return tags | {name: value for name, value in known.items() if value}


@cache
def _content(folder: Path, modified_ns: int) -> str:
    """Hashes a folder once, although many trials of a sweep start from it."""
    del modified_ns
    return content_hash(folder)


def write_outcome(folder: RunFolder, checkpoint: "CheckpointInfo") -> None:
    """Writes the result of the run and the hardware, on which the last bits depend."""
    outcome = outcome_of(folder, checkpoint)
    write_atomically(folder.path / ARTIFACTS_NAME / OUTCOME, json.dumps(outcome, indent=1))


def outcome_of(folder: RunFolder, checkpoint: "CheckpointInfo") -> dict[str, Any]:
    """Returns the hash of the exported weights, and the hardware that computed them."""
    from bert_core.model_folder import WEIGHTS  # loads torch

    weights = folder.model / WEIGHTS
    return {
        "steps": checkpoint.step,
        "weights_sha256": file_sha256(weights) if weights.is_file() else None,
        "device": checkpoint.extra["device"],
        "processor": checkpoint.extra.get("processor"),
        "num_threads": checkpoint.num_threads,
        "world_size": checkpoint.world_size,
    }


def describe_shards(folder: Path) -> dict[str, Any]:
    """Describes token shards: preparation, source texts, and the counts of each split."""
    index = read_index(folder)
    described = {
        "kind": "token shards",
        "sha256": index.data_hash,
        "tokenizer_sha256": index.tokenizer_sha256,
        "vocabulary": index.vocab_size,
        "splits": {
            split: {
                "documents": sum(entry.num_documents for entry in entries),
                "sentences": sum(entry.num_sentences for entry in entries),
                "tokens": sum(entry.num_tokens for entry in entries),
                "shards": len(entries),
            }
            for split, entries in index.splits.items()
        },
        "prepared_with": index.settings,
        "text": index.sources,
    }
    return json.loads(without_machine_paths(json.dumps(described)))


def describe_task_data(name: str, source: str, data: TaskData, tokenizer: Tokenizer) -> dict:
    """Describes the examples of a task: counts, labels and tokenizer."""
    return {
        "kind": "examples",
        "task": name,
        "source": data_name(source),
        "sha256": data.sha256,
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "labels": list(data.task.labels),
        "splits": {
            split: {
                "examples": len(examples.examples),
                "rows": len(examples.rows.lengths),
                "tokens": int(examples.rows.lengths.sum()),
            }
            for split, examples in (("train", data.train), ("dev", data.dev))
        },
    }


def data_name(source: str) -> str:
    """Returns a name of the data without local folders: an address, or the last part of a path."""
    return source if "://" in source else Path(source).name

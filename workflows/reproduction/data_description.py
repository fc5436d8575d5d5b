"""What a run learned from, as plain data: counts and hashes, and of token shards the text too.

It is kept with the run, for whoever looks back from a model or makes the run again; no path of this
machine is in it.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bert_core.text.shards import read_index
from bert_core.tokenizer import tokenizer_hash
from workflows.finetuning.data import TaskData
from workflows.tracking.tracker import without_machine_paths


def describe_shards(folder: Path) -> dict[str, Any]:
    """Token shards: how they were made, of which text, and what there is of each split."""
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
    """The examples of a task: as many, with these labels, encoded by this tokenizer."""
    return {
        "kind": "examples",
        "task": name,
        "source": data_name(source),
        "sha256": data.sha256,
        "tokenizer_sha256": tokenizer_hash(tokenizer),
        "labels": list(data.task.labels),
        "splits": {
            split: {
                "examples": len(each.examples),
                "rows": len(each.rows.lengths),
                "tokens": int(each.rows.lengths.sum()),
            }
            for split, each in (("train", data.train), ("dev", data.dev))
        },
    }


def data_name(source: str) -> str:
    """What the data are called where nobody knows this machine: an address, or the last part."""
    return source if "://" in source else Path(source).name

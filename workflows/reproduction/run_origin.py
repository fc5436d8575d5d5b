"""The provenance that a run records: code, data, encoder and outcome.

Artifacts next to settings.yaml, and tags with their hashes, which its versions carry too. Lineage
and reproduction read them. They contain no path of this machine.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokenizers import Tokenizer

from bert_core.disk import file_sha256, write_atomically
from bert_core.errors import UserError
from bert_core.lineage import read_lineage
from bert_core.strict_files import parse_json, read_bounded
from bert_core.text.shards import read_index
from bert_core.tokenizer import tokenizer_hash
from workflows.finetuning.data import TaskData
from workflows.model_location import EncoderFolder, model_name
from workflows.runs.folder import RunFolder
from workflows.runs.tracker import ARTIFACTS_NAME, code_tags, without_machine_paths
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


ROOT = Path(__file__).parents[2]
"""The folder that the packages lie in."""
PACKAGES = ("bert_core", "workflows")
WORKERS = (
    *("workflows.training.run", "workflows.clusters.workers"),
    *("workflows.pretraining.worker", "workflows.finetuning.worker"),
)
"""The modules that training begins in: what they import, directly or not, is what it reads."""


@dataclass(frozen=True)
class CodeState:
    """One state of the code: its commit, None outside of git, and the sha256 of each file.

    The commit alone is not enough: most commits change nothing that a run computes with, and code
    that was changed since its commit is not in it.
    """

    git_commit: str | None
    git_dirty: bool | None
    files: dict[str, str]

    @classmethod
    def now(cls, root: Path = ROOT) -> Self:
        """The state of the code that runs here."""
        tags = code_tags(root)
        dirty = tags.get("git.dirty")
        return cls(
            tags.get("mlflow.source.git.commit"),
            None if dirty is None else dirty == "true",
            {name: file_sha256(path) for name, path in sorted(_files(root))},
        )

    @property
    def sha256(self) -> str:
        """One hash of all files."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()

    def changed(self, other: "CodeState", names: set[str]) -> list[str]:
        """Those of `names` whose files are other ones in the two states, or in one alone."""
        return sorted(name for name in names if self.files.get(name) != other.files.get(name))


def note_code(path: Path) -> None:
    """Adds the state of the code to a file of them, if the last one there has other files."""
    states, state = read_code(path), CodeState.now()
    if not states or states[-1].files != state.files:
        content = [asdict(one) for one in (*states, state)]
        write_atomically(path, json.dumps(content, indent=1))


def read_code(path: Path) -> list[CodeState]:
    """The states that a run was started under, oldest first; none where there is no such file."""
    try:
        return parse_code(read_bounded(path).decode(errors="replace"))
    except UserError:
        return []


def parse_code(text: str) -> list[CodeState]:
    """What `note_code` has written; raises nothing, for a damaged file holds no state."""
    try:
        return [CodeState(**one) for one in parse_json(text.encode(), "the states of the code")]
    except (UserError, TypeError):
        return []


def training_files(root: Path = ROOT) -> set[str]:
    """The names of the files that decide what a run computes: all that its workers import.

    In a state where such a file is missing or another, one that imports it is another too, unless
    it is one of these.
    """
    modules = {_module(name): path for name, path in _files(root)}
    imported: set[str] = set()
    waiting = list(WORKERS)
    while waiting:
        module = waiting.pop()
        if module in modules and module not in imported:
            imported.add(module)
            waiting.append(module.rpartition(".")[0])  # a package's __init__ runs too
            waiting += _imported(ast.parse(modules[module].read_text(encoding="utf-8")))
    return {modules[module].relative_to(root).as_posix() for module in imported}


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            yield path.relative_to(root).as_posix(), path


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.AST) -> Iterator[str]:
    """Whatever may be a module among the names that are imported, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

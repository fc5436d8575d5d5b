"""What a fine-tuning run reads: examples of train and dev as rows, and the encoder it starts from.

Driver and workers read alike; a hash says that they have read the same.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bert_core.config import ModelConfig
from bert_core.disk import file_sha256
from bert_core.errors import UserError, nearest
from bert_core.evaluation.outcomes import is_labelled
from bert_core.model_folder import CONFIG, load_model_folder, weight_files
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import Task, refuse_ignored_options
from bert_core.tokenizer import tokenizer_hash
from workflows.finetuning.settings import TaskRunSettings
from workflows.model_location import located_model


@dataclass(frozen=True)
class Split:
    """The examples of one split, and the rows made of them."""

    examples: Sequence[Any]
    rows: EncodedRows


@dataclass(frozen=True)
class TaskData:
    """The task with its labels, and its splits; nothing is learned from `test`, or chosen by it."""

    task: Task
    train: Split
    dev: Split
    sha256: str
    test: Split | None = None


def located(data: str) -> str | Path:
    """The data as the task takes it: an address, or a path from the root, for workers elsewhere."""
    return data if "://" in data else Path(data).expanduser().absolute()


def read_task_data(settings: TaskRunSettings, tokenizer: Tokenizer) -> TaskData:
    """Reads and encodes train and dev. Raises `UserError` for what cannot be read or learned."""
    options = settings.options
    refuse_ignored_options(options)
    refuse_one_file(settings)
    train, dev = (
        options.examples(located(settings.source(split)), split) for split in ("train", "dev")
    )
    for name, examples in (("train", train), ("dev", dev)):
        if not examples:
            raise TaskDataError(f"no examples in the {name} split", settings.data, "give some")
    task = options.with_labels(train)
    if task.label_names(train) is not None and len(task.labels) < 2:
        labels = ", ".join(task.labels) or "none"
        raise TaskDataError(f"fewer than two labels, {labels}", settings.data, "check the column")
    refuse_unknown_metric(task)
    splits = [Split(each, task.encode(each, tokenizer)) for each in (train, dev)]
    for name, split in zip(("train", "dev"), splits, strict=True):
        if not split.rows.num_items:
            what = f"no word of the {name} split has a token"
            raise TaskDataError(what, settings.source(name), "give other texts, or another encoder")
    data = TaskData(task, *splits, sha256=_hash(task, [split.rows for split in splits]))
    if settings.test is None:
        return data
    examples = [each for each in task.examples(located(settings.test), "test") if is_labelled(each)]
    if not examples:
        raise TaskDataError("no example has an answer", settings.test, "leave --test out")
    return replace(data, test=Split(examples, task.encode(examples, tokenizer)))


def refuse_one_file(settings: TaskRunSettings) -> None:
    """Raises `TaskDataError` where one file would be read as train and as dev."""
    is_file = bool(settings.data) and "://" not in settings.data and Path(settings.data).is_file()
    if is_file and not (settings.train and settings.dev):
        raise TaskDataError(
            "one file, and two are needed",
            settings.data,
            "give a folder with train and dev files, or --train FILE and --dev FILE",
        )


def refuse_unknown_metric(task: Task) -> None:
    """Raises `UserError` where the metric that is to decide is none of the task's."""
    if isinstance(task, Classification) and task.criterion not in task.metric_names:
        raise UserError(
            f"unknown metric{nearest(task.criterion, task.metric_names)}",
            f"--options.metric {task.criterion}",
            f"one of {', '.join(task.metric_names)}",
        )


def _hash(task: Task, splits: Sequence[EncodedRows]) -> str:
    """What was learned from: token ids, lengths, places and labels of both splits."""
    total = hashlib.sha256(json.dumps(task.labels).encode())
    for rows in splits:
        for array in (rows.input_ids, rows.lengths, rows.first_lengths, rows.places, rows.labels):
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(array.tobytes())
    return total.hexdigest()


@dataclass(frozen=True)
class EncoderFolder:
    """The model folder that a run starts from; `version` is its address at MLflow, if it has one.

    That is `models:/NAME/3`, and None too where the folder was given by its path.
    """

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    sha256: str
    version: str | None = None


def refuse_too_long_rows(settings: TaskRunSettings, encoder: EncoderFolder) -> None:
    """Raises `UserError` where rows may be longer than the encoder has positions."""
    positions, longest = encoder.config.max_position_embeddings, settings.options.max_length
    if longest > positions:
        raise UserError(
            f"rows of {longest} tokens, the encoder has {positions} positions",
            str(encoder.path),
            f"give --options.max_length {positions}",
        )


def open_encoder(model: str, storage: Path, tracking_uri: str) -> EncoderFolder:
    """Opens the encoder: a folder, `models:/NAME@ALIAS`, or a run of the storage by its name.

    Raises `UserError` where there is none, and for a damaged one.
    """
    found = located_model(model, storage, tracking_uri)
    path = found.folder
    config, _, tokenizer = load_model_folder(path)
    total = hashlib.sha256(tokenizer_hash(tokenizer).encode())
    for file in (path / CONFIG, *weight_files(path)):
        total.update(file_sha256(file).encode())
    return EncoderFolder(path, config, tokenizer, total.hexdigest(), found.version)

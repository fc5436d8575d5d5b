"""The teacher of a fine-tuning run: who may teach, and its outputs, computed once and kept.

A cache file has the outputs of one teacher for one set of its rows in one precision; runs of other
seeds, other students and sweeps read it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bert_core.disk import atomic_write, locked
from bert_core.errors import UserError
from bert_core.predictor import Predictor, load_predictor
from bert_core.tasks.classification import Classification
from bert_core.tasks.distillation import TaughtRows, kind_of_answers, same_tokens, targets_of
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.task import FloatArray, Task
from workflows.clusters.workers import Worker
from workflows.finetuning.data import TaskData
from workflows.finetuning.settings import FinetuneSettings
from workflows.finetuning.splits import without_answer
from workflows.model_location import EncoderFolder
from workflows.training.backend import autocast_dtype


@dataclass(frozen=True)
class Teaching:
    """The teacher's model folder, and the folder that keeps its outputs."""

    model: Path
    outputs: Path

    @classmethod
    def of(cls, teacher: EncoderFolder, storage: Path, precision: str) -> Self:
        """The outputs are of this teacher in this precision, whatever it is called."""
        kept = storage.absolute() / "teachers" / f"{teacher.sha256[:12]}-{precision}"
        return cls(teacher.path.absolute(), kept)


def refuse_task(settings: FinetuneSettings) -> None:
    """Raises `UserError` for a task whose answers no teacher can give."""
    if kind_of_answers(settings.options) is None:
        what = f"--task {settings.task} has no distillation"
        raise UserError(what, f"--teacher {settings.teacher}", "leave it out")


def refuse_other_task(found: Task, task: Task, where: str) -> None:
    """Raises `UserError` for a model, given by `where`, whose task `found` is another one."""
    theirs, ours = kind_of_answers(found), kind_of_answers(task)
    if theirs != ours:
        what = f"the model gives {theirs or 'no logits'}, the task is {ours}"
        raise UserError(what, where, "give a model of the same kind of task")
    if {*found.labels} != {*task.labels}:
        what = f"the model's labels are {_some(found.labels)}, the task's {_some(task.labels)}"
        remedy = "give a model of the same labels, or name all of them: --options.labels"
        raise UserError(what, where, remedy)
    if isinstance(found, Classification) and isinstance(task, Classification):
        theirs, ours = ("pairs" if each.reads_pairs else "single texts" for each in (found, task))
        if theirs != ours:
            what = f"the model reads {theirs}, the task has {ours}"
            raise UserError(what, where, f"give a model that learned from {ours}")


def refuse_teacher(settings: FinetuneSettings, data: TaskData, teacher: EncoderFolder) -> None:
    """Raises `UserError` for a teacher that answers other questions than the student learns."""
    task, where = data.task, f"--teacher {settings.teacher}"
    predictor = load_predictor(teacher.path)
    found = predictor.task
    refuse_other_task(found, task, where)
    if isinstance(task, QuestionAnswering) and data.train.examples:
        few = [without_answer(example) for example in data.train.examples[:100]]
        ours, theirs = (each.encode(few, predictor.tokenizer) for each in (task, found))
        mine = data.train.rows
        is_same = same_tokens(ours, theirs) and np.array_equal(
            mine.input_ids[: len(ours.input_ids)], ours.input_ids
        )
        if not is_same:
            what = "the teacher reads questions in other tokens or windows"
            remedy = "give the same tokenizer, --options.max_length and --options.stride"
            raise UserError(what, where, remedy)


def taught_rows(
    settings: FinetuneSettings, teaching: Teaching, data: TaskData, worker: Worker
) -> TaughtRows:
    """The training rows and those without labels, with what the teacher says of them.

    What is not kept yet is computed by the first worker of a machine, while the others wait.
    """
    splits = {"train": data.train, "unlabelled": data.unlabelled}
    teacher: Predictor = load_predictor(teaching.model, device=worker.device)
    parts = []
    for name, split in splits.items():
        if split is None:
            continue
        read = _rows_of(teacher, split.examples)
        outputs = _kept_outputs(settings, teacher, read, teaching.outputs, name, worker)
        targets = targets_of(data.task, split.rows, teacher.task, read, outputs)
        parts.append((split.rows, targets))
    return TaughtRows.joined(parts)


def _rows_of(teacher: Predictor, examples: Sequence[Any]) -> EncodedRows:
    """The rows as the teacher reads them, whatever it knows of their labels."""
    return teacher.task.encode([without_answer(each) for each in examples], teacher.tokenizer)


def _kept_outputs(
    settings: FinetuneSettings,
    teacher: Predictor,
    rows: EncodedRows,
    folder: Path,
    name: str,
    worker: Worker,
) -> FloatArray:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_hash(rows)}.npy"
    with locked(folder / "lock"):
        if not path.is_file():
            outputs, _ = compute_all_outputs(
                teacher.task,
                teacher.model,
                rows,
                device=worker.device,
                max_tokens=settings.max_tokens,
                autocast_dtype=autocast_dtype(settings),
                shared=False,
                progress=worker.publish_share(f"asking the teacher about {name}"),
            )
            with atomic_write(path) as beside, beside.open("wb") as file:
                np.save(file, outputs, allow_pickle=False)
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError("damaged outputs of a teacher", str(path), "delete the file") from error
    count = rows.num_answers(per_row=teacher.task.head.per_row)
    if found.ndim != 2 or len(found) != count:
        what = f"outputs of shape {found.shape} for {count} answers"
        raise UserError(what, str(path), "delete the file")
    return found


def _hash(rows: EncodedRows) -> str:
    """Hashes what the teacher reads: tokens, rows and places."""
    total = hashlib.sha256()
    for array in (rows.input_ids, rows.lengths, rows.first_lengths, rows.places, rows.place_counts):
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()[:16]


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:5]) or "none"
    return f"{shown} and {len(labels) - 5} more" if len(labels) > 5 else shown

"""Fine-tuned model folders that `transformers` wrote: config.json goes in, the task comes out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_core.model.bert import Bert
from bert_core.model.heads import Classifier, Span
from bert_core.model_folder import ModelFolderError
from bert_core.strict_json import read_json_object
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from bert_core.tasks.glue import GlueTask
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task, add_task_head

_USUAL = {
    TASKS[name].architecture: name
    for name in ("classification", "tagging", "question_answering", "multiple_choice")
}
"""What a class of `transformers` does where nobody says it more closely."""

_KINDS = {
    "single_label_classification": "single",
    "multi_label_classification": "multiple",
    "regression": "regression",
}
"""What `problem_type` of config.json means."""


def infer_task(
    folder: Path, config: Mapping[str, Any], model: Bert, name: str | None = None
) -> tuple[str, Task]:
    """Name and task of a model that `transformers` fine-tuned; leaves it the task's head alone.

    `config` is the folder's config.json. The task is the usual one of the architecture there, or
    that of `name`, whose settings count then. Labels are the folder's, in its order, as the task
    calls them; where the folder has no names for them, the task's, or numbers. Rows are as long as
    the model takes them.

    Raises `ModelFolderError` for a model of another kind, and for other labels than the task's;
    `TaskDataError` for a name that is no task's.
    """
    architecture = next(iter(config.get("architectures") or ()), None)
    if architecture not in _USUAL:
        raise ModelFolderError(
            "a model that knows no task",
            str(folder),
            "fine-tune it with workflows/finetune.py; features are by workflows/extract.py",
        )
    name = name or _USUAL[architecture]
    if name not in TASKS:
        raise TaskDataError("unknown task", f"--task {name}", f"one of {', '.join(TASKS)}")
    task = TASKS[name]
    if task.architecture != architecture:
        raise ModelFolderError(
            f"a {architecture}, and the task {name} needs a {task.architecture}",
            str(folder),
            "give another --task",
        )
    head = dict(model.heads.items()).get(task.head.name)
    if not isinstance(head, Classifier | Span):
        raise ModelFolderError(f"a {architecture} without its head", str(folder), "restore it")
    if task.head.pooled and model.config.is_decoder:
        # There it reads [CLS], which sees nothing but itself: each text would get the same answer.
        raise ModelFolderError(
            f"a {architecture} that attends to the left only",
            str(folder),
            "fine-tune such an encoder with workflows/finetune.py, which reads the last token",
        )
    num_outputs = head.linear.out_features
    where = f"{folder} as {name}"
    changes: dict[str, Any] = {"max_length": _max_length(task, folder, model)}
    if name == "classification":
        changes["kind"] = _kind(config, num_outputs, where)
    task = task.model_copy(update=changes)
    if isinstance(task, Classification | Tagging) and task.problem_type != "regression":
        task = task.model_copy(update={"labels": _labels(task, config, num_outputs, where)})
    if num_outputs != task.head.num_outputs:
        raise ModelFolderError(
            f"{num_outputs} outputs where the task has {task.head.num_outputs}",
            where,
            "give another --task, or another model",
        )
    if drawn := add_task_head(model, task):
        raise ModelFolderError(f"no weights of the {', '.join(drawn)}", str(folder), "restore it")
    return name, task


def _kind(config: Mapping[str, Any], num_outputs: int, where: str) -> str:
    """The kind of classification; `transformers` takes one output for a number."""
    usual = "single_label_classification" if num_outputs > 1 else "regression"
    written = config.get("problem_type") or usual
    if written not in _KINDS:
        raise ModelFolderError(f"unknown problem_type {written!r}", where, "mend config.json")
    return _KINDS[written]


def _labels(task: Task, config: Mapping[str, Any], num_outputs: int, where: str) -> tuple[str, ...]:
    """The labels in the order of the outputs, as the task calls them where it has its own."""
    written = config.get("id2label") or {}
    unnamed = [f"LABEL_{index}" for index in range(num_outputs)]
    names = [str(written.get(str(index), name)) for index, name in enumerate(unnamed)]
    if names == unnamed and len(task.labels) in (0, num_outputs):
        return task.labels or tuple(map(str, range(num_outputs)))
    if not task.labels:
        return tuple(names)
    own = {label.casefold(): label for label in task.labels}
    published = task.published_label if isinstance(task, GlueTask) else str
    labels = [own.get(published(name.casefold()), name) for name in names]
    if sorted(labels) != sorted(task.labels):
        raise ModelFolderError(
            f"labels {', '.join(names)} where the task has {', '.join(task.labels)}",
            where,
            "give another --task, or another model",
        )
    return tuple(labels)


def _max_length(task: Task, folder: Path, model: Bert) -> int:
    """What the tokenizer was made for, as far as there are positions for it."""
    positions = model.config.max_position_embeddings
    path = folder / "tokenizer_config.json"
    written = read_json_object(path) if path.is_file() else {}
    length = written.get("model_max_length")
    # Where nobody said it, `transformers` writes a number of 31 digits.
    longest = length if isinstance(length, int) and 8 <= length <= positions else positions
    # Windows over long contexts are an end in themselves: no longer than the task has them.
    return min(longest, task.max_length) if isinstance(task, QuestionAnswering) else longest

"""A fine-tuned model's task with other options, so that it can read a table of other columns."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bert_core.errors import UserError, nearest
from bert_core.tasks.task import Task, refuse_ignored_options
from workflows.settings import split_list


def with_options(task: Task, options: Mapping[str, str]) -> Task:
    """The task with these options, given as text; several values of one option have commas.

    Raises `UserError` for an option that the task has not, for a value it refuses, and for what
    would change the answers themselves: labels, kind.
    """
    known = type(task).model_fields
    values: dict[str, Any] = task.model_dump()
    for name, text in options.items():
        if name not in known:
            near = nearest(name, known)
            raise UserError(f"unknown option{near}", f"--options {name}", ", ".join(known))
        values[name] = split_list(text) if isinstance(values[name], list | tuple) else text
    try:
        changed = type(task).model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(message, f"--options {where}", "give another value") from error
    refuse_ignored_options(changed, options)
    if (changed.head, changed.labels, changed.problem_type) != (
        task.head,
        task.labels,
        task.problem_type,
    ):
        raise UserError(
            "these options change what the model answers",
            f"--options {' '.join(options)}",
            "change only how data is read",
        )
    return changed

"""The tasks by name, and the task of a model folder."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bert_core.errors import UserError
from bert_core.tasks.classification import Classification
from bert_core.tasks.docstring_tasks import (
    AnswersInDocstring,
    LibraryOfPassage,
    ParametersInDocstring,
)
from bert_core.tasks.glue import GLUE
from bert_core.tasks.multiple_choice import SWAG, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task

if TYPE_CHECKING:
    from bert_core.model.bert import Bert

# --help reads the tasks: torch is loaded within functions.

TASKS: dict[str, Task] = {
    "classification": Classification(),
    **GLUE,
    "tagging": Tagging(),
    "ner": Tagging(),
    "conll2003": Tagging(
        columns=("token", "pos", "chunk", "ner"), word_column="token", tag_column="ner"
    ),
    "question_answering": QuestionAnswering(),
    "squad": QuestionAnswering(),
    "squad_v2": QuestionAnswering(no_answer=True),
    "multiple_choice": MultipleChoice(),
    "swag": SWAG,
    "docs_library": LibraryOfPassage(),
    "docs_parameters": ParametersInDocstring(),
    "docs_answers": AnswersInDocstring(),
}
"""A task is a module next to this one, and a line here."""

CONFIG_FIELD = "bertline_task"
"""Where config.json of a model folder keeps the task's settings."""


def task_config(name: str, task: Task) -> dict[str, Any]:
    """Returns the fields of a fine-tuned folder's config.json besides the encoder's architecture.

    `transformers` reads the labels and the problem type; the task itself is for ours.
    """
    config: dict[str, Any] = {
        "architectures": [task.architecture],
        CONFIG_FIELD: {"name": name, "settings": task.model_dump(mode="json")},
    }
    names = task.labels or tuple(f"LABEL_{index}" for index in range(task.head.num_outputs))
    config["id2label"] = {str(index): label for index, label in enumerate(names)}
    config["label2id"] = {label: index for index, label in enumerate(names)}
    if task.problem_type is not None:
        config["problem_type"] = task.problem_type
    return config


def task_of(config: Mapping[str, Any], model: "Bert | None" = None) -> tuple[str, Task] | None:
    """Returns name and task from a model folder's config.json; None if it records no task of ours.

    Rows are no longer than the `model` has positions. Raises `UserError` for a task, or settings of
    one, that this version does not know, and for one that the model's heads are not of.
    """
    described = config.get(CONFIG_FIELD)
    if described is None:
        return None
    try:
        name = described["name"]
        task = type(TASKS[name]).model_validate(described["settings"])
    except (KeyError, TypeError, ValidationError) as error:
        raise UserError(
            "unknown task or task settings",
            f"{CONFIG_FIELD} in config.json: {str(described)[:80]}",
            "open the model with the version that wrote it, or fine-tune again",
        ) from error
    return name, task if model is None else _of_model(task, model)


def _of_model(task: Task, model: "Bert") -> Task:
    from bert_core.model.tagger import FEATURE_TAGGER

    heads = dict(model.heads.items())
    name = FEATURE_TAGGER if FEATURE_TAGGER in heads else task.head.name
    linear = getattr(heads.get(name), "linear", None)
    num_outputs = getattr(linear, "out_features", 0)
    # A decoder's head reads the last token, which no pooler has seen.
    pooler = {"pooler"} if task.head.pooled and not model.config.is_decoder else set()
    if (
        num_outputs != task.head.num_outputs
        or heads.keys() - {"pooler"} != {name}
        or pooler - heads.keys()
    ):
        raise UserError(
            f"a head of {num_outputs} outputs, the task needs {task.head.num_outputs}",
            f"{CONFIG_FIELD} in config.json",
            "restore config.json and the weights, or fine-tune again",
        )
    longest = min(task.max_length, model.config.max_position_embeddings)
    return task.model_copy(update={"max_length": longest})

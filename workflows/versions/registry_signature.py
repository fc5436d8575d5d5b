"""What MLflow says a version reads and answers: a model folder goes in, its signature comes out.

The columns are those of `workflows.versions.model_pyfunc`, which MLflow calls.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.example import read_example
from bert_core.model_folder import CONFIG
from bert_core.strict_json import read_json_object
from bert_core.tasks.catalog import task_of
from bert_core.tasks.classification import Classification
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from workflows.versions.model_pyfunc import LISTS, task_columns

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

_TEXT = "An example with a [MASK] in it."
_LABELS = [{"label": "string", "score": "double"}]
_PLACES = {"text": "string", "start": "long", "end": "long"}
_WORDS = {"start_word": "long", "end_word": "long"}
_READ = {"n_tokens": "long", "truncated": "boolean"}


def signature_and_example(folder: Path) -> "tuple[ModelSignature, list[Any]]":
    """The signature of a folder's pyfunc, and an example of its inputs: the folder's own, if any.

    A single column has no name, so that a list of texts is taken as well as a table.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Array, ColSpec, DataType, Schema

    known = task_of(read_json_object(folder / CONFIG))
    task = known[1] if known else None
    columns, example, text = task_columns(task), read_example(folder), DataType.string
    own = example.inputs if example else None
    if len(columns) == 1:
        schema = Schema([ColSpec(text)])
        return ModelSignature(schema, _outputs(task)), [own if isinstance(own, str) else _TEXT]
    schema = Schema([ColSpec(Array(text) if name in LISTS else text, name) for name in columns])
    row: dict[str, Any] = {name: ["one", "two"] if name in LISTS else "a text" for name in columns}
    if isinstance(own, dict) and own.keys() == row.keys():
        row = dict(own)
    return ModelSignature(schema, _outputs(task)), [row]


def _outputs(task: Task | None) -> "Schema | None":
    """The fields of an answer; None of a model that was not fine-tuned, whose heads decide."""
    from mlflow.types.schema import ColSpec, Schema

    if task is None:
        return None
    fields = _fields(task) | _READ
    return Schema([ColSpec(_type(kind), name) for name, kind in fields.items()])


def _fields(task: Task) -> dict[str, Any]:
    match task:
        case Classification(kind="single"):
            return {"label": "string", "scores": _LABELS}
        case Classification(kind="multiple"):
            return {"labels": ["string"], "scores": _LABELS}
        case Tagging():
            return {"entities": [{"type": "string", **_PLACES, **_WORDS, "score": "double"}]}
        case QuestionAnswering():
            answers = [{**_PLACES, "score": "double", "probability": "double"}]
            return {"answers": answers, "null_score": "double"}
        case MultipleChoice():
            return {"choice": "long", "scores": ["double"]}
    return {"value": "double"}


def _type(kind: Any) -> Any:  # noqa: ANN401 - MLflow's types
    """MLflow's type of a name, of a list of one kind, of an object."""
    from mlflow.types.schema import Array, DataType, Object, Property

    if isinstance(kind, list):
        return Array(_type(kind[0]))
    if isinstance(kind, dict):
        return Object([Property(name, _type(each)) for name, each in kind.items()])
    return DataType[kind]

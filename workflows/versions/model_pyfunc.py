"""The code that MLflow keeps with a version: it answers rows of texts with the folder's model.

`mlflow.pyfunc.load_model` and `mlflow models serve` call `_load_pyfunc`; the weights are read as
safetensors. Each version has a copy of this file, so nothing here imports workflows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.example import read_example
from bert_core.masked_language_model import count_masks
from bert_core.model_folder import CONFIG
from bert_core.predictor import Predictor, load_predictor
from bert_core.strict_files import read_json_object
from bert_core.tasks.catalog import task_of
from bert_core.tasks.classification import Classification
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.tasks.text_embedding import TextEmbedding

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

NUM_CANDIDATES = 5
TEXT, PAIR = ("text",), ("text", "text_pair")
QUESTION, CHOICE = ("question", "context"), ("context", "choices")
LISTS = ("choices",)
"""Columns that hold a list of texts."""
_TEXT = "An example with a [MASK] in it."
_LABELS = [{"label": "string", "score": "double"}]
_PLACES = {"text": "string", "start": "long", "end": "long"}
_WORDS = {"start_word": "long", "end_word": "long"}
_READ = {"n_tokens": "long", "truncated": "boolean"}


@dataclass(frozen=True)
class PyfuncModel:
    """The object that MLflow calls; `answer` takes rows with a value for each of `columns`."""

    columns: tuple[str, ...]
    answer: Callable[[list[tuple[Any, ...]]], list[Any]]

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[Any]:  # noqa: ANN401 - a table, or lists
        """Returns an answer for each row of a table, or each item of a list.

        Raises ValueError for a missing column, and for a value that is not a text.
        """
        del params
        rows = input_rows(model_input, self.columns)
        return self.answer(rows) if rows else []


def _load_pyfunc(data_path: str) -> PyfuncModel:
    predictor = load_predictor(data_path)
    task = predictor.fine_tuned_for
    if task is not None and not isinstance(task, TextEmbedding):
        return PyfuncModel(task_columns(task), partial(_task_answers, predictor))
    if task is not None and task.is_sparse:
        return PyfuncModel(TEXT, partial(_word_weights, predictor))
    if "masked_token" in predictor.model.heads:
        return PyfuncModel(TEXT, partial(_filled_masks, predictor))
    return PyfuncModel(TEXT, partial(_vectors, predictor))


def task_columns(task: Task | None) -> tuple[str, ...]:
    """Returns the input columns of a task; None stands for a model without a task."""
    if isinstance(task, Classification) and task.second_column is not None:
        return PAIR
    if isinstance(task, Reranking):
        return PAIR
    if isinstance(task, QuestionAnswering):
        return QUESTION
    return CHOICE if isinstance(task, MultipleChoice) else TEXT


def _task_answers(predictor: Predictor, rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Returns predictions in the HTTP format, with `n_tokens` and `truncated` last."""
    task = predictor.task
    columns = task_columns(task)
    inputs = (
        _texts(rows) if columns == TEXT else [dict(zip(columns, row, strict=True)) for row in rows]
    )
    found = predictor.predict(inputs, overflow=getattr(task, "overflow", "right"))
    fields = [answer.model_dump(exclude_none=True) for answer in found]
    return [
        {name: field[name] for name in sorted(field, key=_READ.__contains__)} for field in fields
    ]


def _filled_masks(
    predictor: Predictor, rows: Sequence[tuple[Any, ...]]
) -> list[list[dict[str, Any]]]:
    """Returns the likeliest words for the first [MASK] of each text, best first.

    Each is {"token": str, "probability": float}. Raises ValueError for a text without [MASK].
    """
    texts = _texts(rows)
    for text in texts:
        if not count_masks(text, predictor.tokenizer):
            raise ValueError(f"a text needs [MASK] in it: {text[:60]!r}")
    return [
        [
            {"token": candidate.token, "probability": candidate.score}
            for candidate in filled.masks[0].candidates
        ]
        for filled in predictor.fill_mask(texts, top_k=NUM_CANDIDATES, overflow="window")
    ]


def _vectors(predictor: Predictor, rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Pools as the folder's sentence-transformers files say, or takes the mean of the tokens."""
    vectors = predictor.embed(_texts(rows), overflow="window")
    return [{"vector": vector} for vector in vectors.tolist()]


def _word_weights(predictor: Predictor, rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [{"words": words} for words in predictor.embed_sparse(_texts(rows), overflow="window")]


def _texts(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [text for (text,) in rows]


def input_rows(given: Any, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:  # noqa: ANN401 - a table, or lists
    """Returns the rows of a table, of lists by column, or of a list of texts or row mappings.

    A single column may have any name, or none. Raises ValueError for a missing or duplicate column,
    and for a value that is not a text.
    """
    if hasattr(given, "columns"):  # a table of pandas
        counts = Counter(map(str, given.columns))
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(f"two columns {twice[0]}: rename one of them")
        given = {str(name): values for name, values in given.to_dict("list").items()}
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    if isinstance(given, Mapping):
        given = dict(given)
        if len(columns) == len(given) == 1:
            given = dict(zip(columns, given.values(), strict=True))
        _refuse_missing(given, columns)
        lists = [_listed(given[name], is_row=name in LISTS) for name in columns]
        if len({len(each) for each in lists}) > 1:
            raise ValueError(f"columns of different lengths: {', '.join(columns)}")
        rows = list(zip(*lists, strict=True))
    else:
        rows = [_row(each, columns) for each in given]
    return [
        tuple(_value(value, name, number) for name, value in zip(columns, row, strict=True))
        for number, row in enumerate(rows)
    ]


def _listed(value: Any, *, is_row: bool) -> list[Any]:  # noqa: ANN401 - a value, or a list of them
    """Returns a column's values; a single value becomes a column of one."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, list | tuple) or (is_row and value and isinstance(value[0], str)):
        return [value]
    return list(value)


def _row(item: Any, columns: tuple[str, ...]) -> tuple[Any, ...]:  # noqa: ANN401 - a text or a row
    if isinstance(item, Mapping):
        _refuse_missing(item, columns)
        return tuple(item[name] for name in columns)
    if len(columns) == 1:
        return tuple(item) if isinstance(item, list) and len(item) == 1 else (item,)
    raise ValueError(f"a row needs {' and '.join(columns)}: {str(item)[:60]!r}")


def _refuse_missing(given: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    missing = [name for name in columns if name not in given]
    if missing:
        raise ValueError(f"no column {missing[0]}: there are {', '.join(map(str, given))}")


def _value(value: Any, name: str, number: int) -> str | list[str]:  # noqa: ANN401 - anything
    value = value.tolist() if hasattr(value, "tolist") else value
    is_list = isinstance(value, list) and len(value) > 0
    if is_list != (name in LISTS) or not all(map(_is_text, value if is_list else [value])):
        wanted = "list of texts" if name in LISTS else "text"
        raise ValueError(f"{name} of row {number} is no {wanted}: {str(value)[:60]!r}")
    return value


def _is_text(value: Any) -> bool:  # noqa: ANN401 - anything
    """Returns whether a value is a text without lone surrogates, as tokenizers need."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def signature_and_example(folder: Path) -> "tuple[ModelSignature, list[Any]]":
    """Returns the signature of a folder's pyfunc, and an example input: the folder's own, if any.

    A single column has no name, so MLflow accepts a list of texts as well as a table.
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
    """Returns the fields of an answer; None for vectors and words for a mask."""
    from mlflow.types.schema import ColSpec, Schema

    if task is None or isinstance(task, TextEmbedding):
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
    """Converts a type name, a list with one type, or a mapping to MLflow's type."""
    from mlflow.types.schema import Array, DataType, Object, Property

    if isinstance(kind, list):
        return Array(_type(kind[0]))
    if isinstance(kind, dict):
        return Object([Property(name, _type(each)) for name, each in kind.items()])
    return DataType[kind]

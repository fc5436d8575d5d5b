"""Finds the task of a model folder, ours or one that `transformers` fine-tuned."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from pydantic import Field

from bert_core.features.sentence_pooling import read_sentence_pooling
from bert_core.hugging_face.cross_encoder import cross_encoder_pooling
from bert_core.hugging_face.families import FAMILIES
from bert_core.hugging_face.family import PRETRAINED
from bert_core.model.bert import Bert, Classifier, Span
from bert_core.model_folder import CONFIG, ModelFolderError
from bert_core.strict_files import read_json_object
from bert_core.tasks.catalog import TASKS, GlueTask, task_of
from bert_core.tasks.classification import Classification, ScoreFunction, Text
from bert_core.tasks.encoded_rows import EncodedRows, RowPooling
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task, add_task_head
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.tokenizer_settings import longest_row

_USUAL = {
    TASKS[name].architecture: name
    for name in ("classification", "tagging", "question_answering", "multiple_choice")
}
"""The default task of each class of `transformers`."""

_KINDS = {
    "single_label_classification": "single",
    "multi_label_classification": "multiple",
    "regression": "regression",
}
"""The kinds of `problem_type` in config.json."""

_ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": True,
    "torch.nn.modules.linear.Identity": False,
}
"""What sentence-transformers does to the outputs of a cross-encoder: whether it is the sigmoid."""


class ForeignClassification(Classification):
    """Classification by a model whose folder does not say whether it reads texts or pairs."""

    published_labels: tuple[str, ...] = Field(
        default=(), description="labels in config.json, in the order of the outputs"
    )
    is_score: bool = Field(
        default=False, description="whether the single output is a score, not a number on a scale"
    )
    is_raw: bool = Field(
        default=False, description="whether that score is the raw output, not its sigmoid"
    )

    @property
    def reads_pairs(self) -> bool | None:
        """True if the user names a second column; else None, which follows the example."""
        return True if self.second_column is not None else None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The labels as config.json has them."""
        return self.published_labels

    @property
    def score_function(self) -> ScoreFunction:
        """As in `transformers`: the sigmoid of a single output that is no regression."""
        return "sigmoid" if self.is_score else super().score_function

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Text]
    ) -> list[dict[str, Any]]:
        """As `Classification`; the `value` of a score as sentence-transformers gives it."""
        found = super().decode(outputs, rows, examples)
        if self.is_score and not self.is_raw:
            return [{"value": float(1 / (1 + np.exp(-each["value"])))} for each in found]
        return found


class ForeignTagging(Tagging):
    """Tagging by a model that was trained elsewhere: its words have the spaces of their text."""

    reads_spaces: ClassVar[bool] = True


_FOREIGN: dict[str, Task] = {"tagging": ForeignTagging()}
"""What a task is to a model that was trained elsewhere, where that differs."""


def find_task(folder: Path, model: Bert, name: str | None = None) -> tuple[str, Task] | None:
    """Name and task of a model folder; None for an encoder that was not fine-tuned.

    `model` is the folder's. `name` is the task of a folder that records none; raises as `task_of`
    and `infer_task` do.
    """
    config = read_json_object(folder / CONFIG)
    if pooling := cross_encoder_pooling(folder):
        family = FAMILIES[config.get("model_type", "bert")]
        config["architectures"] = [family.class_of("BertForSequenceClassification")]
        config["classifier_pooling"] = pooling
    known = task_of(config, model)
    architecture = _architecture(config)
    if known is None and (name is not None or architecture not in (*PRETRAINED, "BertModel", None)):
        return infer_task(folder, config, model, name)
    return known


def _architecture(config: Mapping[str, Any]) -> str | None:
    """The class of BERT with the heads of the folder's."""
    name = next(iter(config.get("architectures") or ()), None)
    family = FAMILIES[config.get("model_type", "bert")]
    return family.class_of_bert(name) if isinstance(name, str) else name


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
    architecture = _architecture(config)
    asked = TASKS.get(name or "")
    if name is not None and isinstance(asked, TextEmbedding):
        return name, _embedding(folder, model, asked)
    if architecture not in _USUAL:
        raise ModelFolderError(
            "no known task in the model",
            str(folder),
            "fine-tune it with workflows/finetune.py; features are by workflows/extract.py",
        )
    name = name or _USUAL[architecture]
    if name not in TASKS:
        raise TaskDataError("unknown task", f"--task {name}", f"one of {', '.join(TASKS)}")
    task = _FOREIGN.get(name, TASKS[name])
    if task.architecture != architecture:
        raise ModelFolderError(
            f"a {architecture}, and the task {name} needs a {task.architecture}",
            str(folder),
            "give another --task",
        )
    head = dict(model.heads.items()).get(task.head.name)
    if not isinstance(head, Classifier | Span):
        raise ModelFolderError(f"a {architecture} without its head", str(folder), "restore it")
    num_outputs = head.linear.out_features
    where = f"{folder} as {name}"
    changes: dict[str, Any] = {"max_length": _max_length(task, folder, model)}
    if task.head.pooled:
        changes["classifier_pooling"] = _classifier_pooling(folder, config, model)
    names: tuple[str, ...] = ()
    if isinstance(task, Classification | Tagging):
        names = _output_names(config, num_outputs, where)
    if name == "classification":
        task = ForeignClassification(published_labels=names)
        changes |= _kind(folder, config, num_outputs, where)
    task = task.model_copy(update=changes)
    if names and task.problem_type != "regression":
        task = task.model_copy(update={"labels": _labels(task, names, where)})
    if num_outputs != task.head.num_outputs:
        raise ModelFolderError(
            f"{num_outputs} outputs where the task has {task.head.num_outputs}",
            where,
            "give another --task, or another model",
        )
    if drawn := add_task_head(model, task):
        raise ModelFolderError(f"no weights of the {', '.join(drawn)}", str(folder), "restore it")
    return name, task


def _classifier_pooling(folder: Path, config: Mapping[str, Any], model: Bert) -> RowPooling:
    if model.config.is_decoder:
        # There it reads [CLS], which sees nothing but itself: each text would get the same answer.
        raise ModelFolderError(
            "a classifier that attends to the left only",
            str(folder),
            "fine-tune such an encoder with workflows/finetune.py, which reads the last token",
        )
    if not model.config.transforms_every_state:
        return "cls"
    pooling = config.get("classifier_pooling", "cls")
    if pooling not in get_args(RowPooling):
        where = f"classifier_pooling in {folder / CONFIG}"
        raise ModelFolderError(f"unknown pooling {pooling!r}", where, "give cls or mean")
    return pooling


def _embedding(folder: Path, model: Bert, task: TextEmbedding) -> TextEmbedding:
    """The task with the pooling and the prompts of the folder, as sentence-transformers reads it.

    Raises `ModelFolderError` for vectors that are more than pooled states.
    """
    said = read_sentence_pooling(folder, model.config.max_position_embeddings)
    if said.dense or said.pooling == "max":
        what = "vectors that are mapped further (Dense)" if said.dense else "vectors of maxima"
        raise ModelFolderError(what, str(folder), "measure a model of pooled states")
    add_task_head(model, task)
    query, passage = said.search_prompts()
    changes = {
        "pooling": said.pooling,
        "query_prompt": query,
        "passage_prompt": passage,
        "max_length": said.max_length or model.config.max_position_embeddings,
    }
    return task.model_copy(update=changes)


def _kind(folder: Path, config: Mapping[str, Any], num_outputs: int, where: str) -> dict[str, Any]:
    """The kind of classification, and the meaning of a single output.

    It is a number where `problem_type` says so; else a score, of a cross-encoder.
    """
    written = config.get("problem_type") or "single_label_classification"
    if written not in _KINDS:
        raise ModelFolderError(f"unknown problem_type {written!r}", where, "fix config.json")
    if num_outputs > 1 or written != "single_label_classification":
        return {"kind": _KINDS[written]}
    return {"kind": "regression", "is_score": True, "is_raw": not _is_sigmoid(folder, config)}


def _is_sigmoid(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the score of a cross-encoder is the sigmoid of its output, as it is by default."""
    settings = read_json_object(folder / "config_sentence_transformers.json", is_optional=True)
    if settings.get("default_prompt_name"):
        what = f"a prompt before each pair, {settings['default_prompt_name']}, is not supported"
        raise ModelFolderError(what, str(folder), "take default_prompt_name out, and send it")
    activation = settings.get("activation_fn")
    activation = activation or (config.get("sentence_transformers") or {}).get("activation_fn")
    activation = activation or config.get("sbert_ce_default_activation_function")
    if activation is not None and (
        not isinstance(activation, str) or activation not in _ACTIVATIONS
    ):
        remedy = f"there are {' and '.join(_ACTIVATIONS)}"
        raise ModelFolderError(f"the activation {activation!r} is not known", str(folder), remedy)
    return activation is None or _ACTIVATIONS[activation]


def _output_names(config: Mapping[str, Any], num_outputs: int, where: str) -> tuple[str, ...]:
    """The labels as config.json has them, in the order of the outputs; else the usual names."""
    written = config.get("id2label")
    if not written:
        return tuple(f"LABEL_{index}" for index in range(num_outputs))
    try:
        names = {int(index): str(name) for index, name in written.items()}
    except (AttributeError, ValueError) as error:
        raise ModelFolderError(
            "id2label does not map numbers to labels", where, "fix it"
        ) from error
    if sorted(names) != list(range(num_outputs)) or len(set(names.values())) < num_outputs:
        raise ModelFolderError(
            f"id2label has {', '.join(f'{index}: {name}' for index, name in names.items())[:200]}",
            where,
            f"give a label of its own to each of 0 to {num_outputs - 1} in config.json",
        )
    return tuple(names[index] for index in range(num_outputs))


def _labels(task: Task, names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """The labels in the order of the outputs, with the task's names where it has its own.

    Classes without names are numbers, as in data sets.
    """
    are_unnamed = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    if isinstance(task, Classification) and are_unnamed and len(task.labels) in (0, len(names)):
        return task.labels or tuple(map(str, range(len(names))))
    if not task.labels:
        return names
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
    """The folder's length, at most the number of positions."""
    positions = model.config.max_position_embeddings
    longest = longest_row(folder, positions)
    # Windows over long contexts are an end in themselves: no longer than the task has them.
    return min(longest, task.max_length) if isinstance(task, QuestionAnswering) else longest

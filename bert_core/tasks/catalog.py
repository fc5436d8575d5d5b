"""The tasks by name, GLUE's among them, and the task of a model folder.

The files of GLUE are read as they were published (Wang et al. 2018), and as the Hugging Face Hub
has them, `hf://nyu-mll/glue:CONFIG`, with other column and label names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ValidationError

from bert_core.errors import UserError
from bert_core.tasks.classification import Answer, Classification, Text
from bert_core.tasks.docstring_tasks import (
    AnswersInDocstring,
    LibraryOfPassage,
    ParametersInDocstring,
)
from bert_core.tasks.multiple_choice import SWAG, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.search_tasks import DocstringSearch, SquadSearch, TextSearch
from bert_core.tasks.tables import Record
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task, reads_pooler
from bert_core.tasks.text_embedding import TextEmbedding

if TYPE_CHECKING:
    from bert_core.model.bert import Bert

# --help reads the tasks: torch is loaded within functions.

ENTAILMENT = ("entailment", "not_entailment")

_COLUMNS_ON_HUB = {
    "1": "label",
    "3": "sentence",
    "#1 String": "sentence1",
    "#2 String": "sentence2",
    "Quality": "label",
    "gold_label": "label",
    "is_duplicate": "label",
    "score": "label",
    "sentence1": "premise",
    "sentence2": "hypothesis",
}
"""A column of the published files, and what it is called where there is no column of that name."""

_NUMBERS = {
    "unacceptable": "0",
    "acceptable": "1",
    "negative": "0",
    "positive": "1",
    "not_equivalent": "0",
    "equivalent": "1",
    "not_duplicate": "0",
    "duplicate": "1",
    "not_entailment": "0",
    "entailment": "1",
}
"""The Hub's names of the labels that the published files have as numbers."""


class GlueTask(Classification):
    """A task of GLUE."""

    refuses_unused: ClassVar[bool] = False  # its options are those of the published files

    def published_label(self, name: str) -> str:
        """Returns a label as in the published files, given the Hub's name; others are unchanged."""
        return name if name in self.labels else _NUMBERS.get(name, name)

    def _text(self, record: Record) -> Text:
        of_hub = {}
        for published in (self.text_column, self.second_column, self.label_column):
            name = _COLUMNS_ON_HUB.get(published or "", "")
            if published not in record.values and name in record.values:
                of_hub[published] = record.values[name]
        if of_hub and {self.text_column, self.second_column} - {None, *record.values, *of_hub}:
            return super()._text(record)  # another table: the error names its columns alone
        return super()._text(replace(record, values={**record.values, **of_hub}))

    def _answer(self, value: Any, where: str) -> Answer | None:  # noqa: ANN401 - a table holds anything
        answer = super()._answer(value, where)
        return self.published_label(answer) if isinstance(answer, str) else answer


GLUE: dict[str, GlueTask] = {
    "cola": GlueTask(
        header=False, text_column="3", label_column="1", labels=("0", "1"), metric="matthews"
    ),
    "sst2": GlueTask(text_column="sentence", labels=("0", "1")),
    "mrpc": GlueTask(
        text_column="#1 String",
        second_column="#2 String",
        label_column="Quality",
        labels=("0", "1"),
        metric="f1",
    ),
    "stsb": GlueTask(
        kind="regression",
        text_column="sentence1",
        second_column="sentence2",
        label_column="score",
        metric="spearman",
    ),
    "qqp": GlueTask(
        text_column="question1",
        second_column="question2",
        label_column="is_duplicate",
        labels=("0", "1"),
        skip_ragged=True,
        metric="f1",
    ),
    "mnli": GlueTask(
        text_column="sentence1",
        second_column="sentence2",
        label_column="gold_label",
        labels=("entailment", "neutral", "contradiction"),
    ),
    "qnli": GlueTask(text_column="question", second_column="sentence", labels=ENTAILMENT),
    "rte": GlueTask(text_column="sentence1", second_column="sentence2", labels=ENTAILMENT),
    "wnli": GlueTask(text_column="sentence1", second_column="sentence2", labels=("0", "1")),
}
"""The metric is the one that the paper's table 1 reports: F1 for MRPC and QQP, Spearman for STS-B,
Matthews for CoLA, accuracy for the others."""

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
    "embedding": TextEmbedding(),
    "sparse": TextEmbedding(vectors="sparse"),
    "squad_search": SquadSearch(),
    "docs_search": DocstringSearch(),
    "text_search": TextSearch(),
    "rerank": Reranking(),
    "docs_library": LibraryOfPassage(),
    "docs_parameters": ParametersInDocstring(),
    "docs_answers": AnswersInDocstring(),
}
"""A task is a module next to this one, and a line here."""

CONFIG_FIELD = "bertline_task"
"""Where config.json of a model folder keeps the task's settings."""


def architecture_of(task: Task) -> str:
    """The class of `transformers` that loads a task's folder; of sparse vectors that of words."""
    is_sparse = isinstance(task, TextEmbedding) and task.is_sparse
    return "BertForMaskedLM" if is_sparse else task.architecture


def task_config(name: str, task: Task) -> dict[str, Any]:
    """Returns the fields of a fine-tuned folder's config.json besides the encoder's architecture.

    `transformers` reads the labels and the problem type; the task itself is for ours.
    """
    config: dict[str, Any] = {
        "architectures": [architecture_of(task)],
        CONFIG_FIELD: {"name": name, "settings": task.written()},
    }
    if task.head.reads_mean:
        config["classifier_pooling"] = "mean"
    if task.problem_type is not None:
        config["problem_type"] = task.problem_type
    if not task.head.num_outputs:
        return config
    names = task.labels or tuple(f"LABEL_{index}" for index in range(task.head.num_outputs))
    config["id2label"] = {str(index): label for index, label in enumerate(names)}
    config["label2id"] = {label: index for index, label in enumerate(names)}
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
    from bert_core.model.bert import VECTORS, WORDS
    from bert_core.model.tagger import FEATURE_TAGGER

    longest = min(task.max_length, model.config.max_position_embeddings)
    if task.head.name == VECTORS:
        model.add_task_head(VECTORS, 0)  # which has no weights, so no folder has it
        return task.model_copy(update={"max_length": longest})
    heads = dict(model.heads.items())
    if task.head.name == WORDS and heads.keys() == {WORDS}:
        return task.model_copy(update={"max_length": longest})
    name = FEATURE_TAGGER if FEATURE_TAGGER in heads else task.head.name
    linear = getattr(heads.get(name), "linear", None)
    num_outputs = getattr(linear, "out_features", 0)
    # A decoder's head reads the last token, which no pooler has seen.
    is_read = reads_pooler(model, task) and not model.config.is_decoder
    pooler = {"pooler"} if is_read else set()
    if (
        num_outputs != task.head.num_outputs
        or heads.keys() - {"pooler", VECTORS} != {name}
        or pooler - heads.keys()
    ):
        raise UserError(
            f"a head of {num_outputs} outputs, the task needs {task.head.num_outputs}",
            f"{CONFIG_FIELD} in config.json",
            "restore config.json and the weights, or fine-tune again",
        )
    if task.head.reads_mean:
        model.add_task_head(VECTORS, 0)
    return task.model_copy(update={"max_length": longest})

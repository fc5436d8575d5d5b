"""What is asked of a model: the settings and its task go in, columns and a codec come out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_core.errors import UserError
from bert_core.model.tagger import FEATURE_TAGGER
from bert_core.predictor import Predictor
from bert_core.tasks.answers import Codec, answered, answering, classified, tagged
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.tasks.text_tagging import TextTagging
from bert_core.text.texts import NamedTexts
from workflows.inference.predict_settings import Aggregation, OverflowOrError, PredictSettings

Kind = Literal["label", "labels", "value", "entities", "answers"]
"""What a model gives, by the name of the field."""

_KINDS: dict[str, Kind] = {"single": "label", "multiple": "labels", "regression": "value"}

_WORDS_FOR: dict[Kind, str] = {
    "label": "labels",
    "labels": "several labels",
    "value": "numbers",
    "entities": "entities",
    "answers": "answers to questions",
}

_OPTIONS: dict[str, tuple[Kind, ...]] = {
    "text_column": ("label", "labels", "value", "entities"),
    "text_pair_column": ("label", "labels", "value"),
    "question_column": ("answers",),
    "context_column": ("answers",),
    "top_k": ("label", "labels", "answers"),
    "aggregation": ("entities",),
    "max_answer_length": ("answers",),
    "align_to_words": ("answers",),
    "null_threshold": ("answers",),
}
"""The options that say something to some models only."""


@dataclass(frozen=True)
class PredictionRequest:
    """What is asked of a model, as over HTTP; `columns` are those of the texts, by option."""

    kind: Kind
    columns: dict[str, str]
    overflow: OverflowOrError
    top_k: int | None
    aggregation: Aggregation
    max_answer_length: int | None
    align_to_words: bool | None
    null_threshold: float | None

    def codec(self, task: Task) -> Codec:
        """The task as it is asked; where a text that is too long is an error, what it cuts is."""
        overflow = "right" if self.overflow == "error" else self.overflow
        if isinstance(task, Tagging):
            return TextTagging(task, self.aggregation, overflow)
        if isinstance(task, QuestionAnswering):
            return answering(
                task,
                overflow=overflow,
                top_k=self.top_k or 1,
                max_answer_length=self.max_answer_length,
                align_to_words=self.align_to_words,
                null_threshold=self.null_threshold,
            )
        return task.model_copy(update={"overflow": overflow})

    def takes(self, record: NamedTexts) -> bool:
        """Whether a record's texts are what the model reads: words are for entities alone."""
        return self.kind == "entities" or all(isinstance(each, str) for each in record.texts)

    def examples(self, records: Sequence[NamedTexts]) -> list[Any]:
        """The records as the codec has them."""
        if self.kind == "entities":
            return [each.texts[0] for each in records]
        texts = [[str(text) for text in each.texts] for each in records]
        if self.kind == "answers":
            return [Question("", question, context, None) for context, question in texts]
        return [Text(first, second[0] if second else None, None) for first, *second in texts]

    def fields(self, found: dict[str, Any]) -> dict[str, Any]:
        """What is written of a prediction, as over HTTP."""
        if self.kind == "entities":
            return tagged(found)
        if self.kind == "answers":
            return answered(found, self.top_k or 1)
        return classified(found, self.top_k)


def request_of(settings: PredictSettings, predictor: Predictor) -> PredictionRequest:
    """What the settings ask of this model.

    Raises `UserError` for a model of another kind than those there are here, and for settings that
    say nothing to it.
    """
    kind = _kind_of(predictor.task, settings.model)
    for name, kinds in _OPTIONS.items():
        if name in settings.model_fields_set and kind not in kinds:
            what = f"says nothing to a model that gives {_WORDS_FOR[kind]}"
            raise UserError(what, f"--{name}", "leave it out")
    is_lstm = FEATURE_TAGGER in predictor.model.heads
    if is_lstm and settings.aggregation != "first":
        what = f"{settings.model} was taught the first sub-words of words alone"
        raise UserError(what, f"--aggregation {settings.aggregation}", "leave it out")
    return PredictionRequest(
        kind=kind,
        columns=_columns(settings, predictor.task),
        overflow=settings.overflow,
        top_k=settings.top_k,
        aggregation=settings.aggregation,
        max_answer_length=settings.max_answer_length,
        align_to_words=settings.align_to_words,
        null_threshold=settings.null_threshold,
    )


def _kind_of(task: Task, model: str) -> Kind:
    if isinstance(task, Classification):
        return _KINDS[task.kind]
    if isinstance(task, Tagging):
        return "entities"
    if isinstance(task, QuestionAnswering):
        return "answers"
    raise UserError(
        f"a model of another kind of task, {type(task).__name__}",
        model,
        "workflows/evaluate.py --output FILE predicts for tables of its task",
    )


def _columns(settings: PredictSettings, task: Task) -> dict[str, str]:
    """The columns of the texts by option; of questions the contexts, which are longer, first."""
    if isinstance(task, QuestionAnswering):
        return {
            "context_column": settings.context_column,
            "question_column": settings.question_column,
        }
    columns = {"text_column": settings.text_column}
    pairs = task.reads_pairs if isinstance(task, Classification) else False
    if pairs or (pairs is None and settings.text_pair_column is not None):
        columns["text_pair_column"] = settings.text_pair_column or "text_pair"
    elif settings.text_pair_column is not None:
        what = f"{settings.model} reads single texts"
        raise UserError(what, f"--text_pair_column {settings.text_pair_column}", "leave it out")
    return columns

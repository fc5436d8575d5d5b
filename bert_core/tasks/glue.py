"""The nine tasks of GLUE by name, in the files as they were published (Wang et al. 2018).

The Hugging Face Hub, `hf://nyu-mll/glue:CONFIG`, has other column and label names; both are read.
"""

from dataclasses import replace
from typing import Any, ClassVar

from bert_core.tasks.classification import Answer, Classification, Text
from bert_core.tasks.tables import Record

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

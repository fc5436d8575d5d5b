"""Classification of sentences and pairs: one label, several labels, or a number.

The paper's figure 4 (a) and (b): the pooled state of [CLS], dropout, a linear map (section 4.1).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from tokenizers import Tokenizer

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.delimited import MAX_SKIPPED, HasHeader, MaxSkipped
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch, whole_rows
from bert_core.tasks.label_values import (
    as_known,
    class_warnings,
    divided_warnings,
    drop_label_of_trained,
    drop_label_option,
    label_of,
    likeness_warnings,
    not_labels,
    number_of,
    quoted_warnings,
    stripped,
)
from bert_core.tasks.metrics import correlation_metrics, label_metrics, multi_label_metrics
from bert_core.tasks.sequences import Overflow, encode_sequences
from bert_core.tasks.tables import (
    Record,
    TaskDataError,
    column,
    parse_cell,
    read_split,
    text_of,
    value_of,
)
from bert_core.tasks.task import (
    ClassifierPooling,
    FloatArray,
    HeadShape,
    Predictions,
    Task,
    pooled_head,
    softmax,
)

if TYPE_CHECKING:
    from torch import Tensor

    from bert_core.tasks.label_loss import LabelLoss

# --help reads the tasks: torch is loaded within functions.

ScoreFunction = Literal["softmax", "sigmoid", "none"]
"""What becomes of the head's outputs; the names are those of Hugging Face."""

Answer = str | tuple[str, ...] | float
"""A label, several labels, or a number."""

Share = Annotated[float, Field(ge=0, le=1)]

_HIDDEN, _BITS = {-1.0}, {"0", "1", "true", "false"}

METRICS = {
    "single": ("accuracy", "f1_macro", "matthews"),
    "multiple": ("f1_micro", "f1_macro", "exact_match"),
    "regression": ("correlation", "pearson", "spearman"),
}
"""The metrics of each kind that can select the best epoch; the first is the default."""


@dataclass(frozen=True)
class Text:
    """One example: a text or a pair, and its answer, None where it is not known.

    `columns` are all of the record's, for slices; `where` is its place in a file.
    """

    first: str
    second: str | None
    answer: Answer | None
    where: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


class Classification(Task):
    """Decides about a text or a pair of texts."""

    architecture: ClassVar[str] = "BertForSequenceClassification"
    refuses_unused: ClassVar[bool] = True
    """Whether options of TSV and CSV are refused for other tables, where they say nothing."""

    kind: Literal["single", "multiple", "regression"] = Field(
        default="single",
        description="single: one label each; multiple: any number of labels each, in one column"
        " divided by commas or as a list; regression: a number",
    )
    text_column: str = Field(default="text", description="column of the text")
    second_column: str | None = Field(default=None, description="column of the pair's second text")
    label_column: str = Field(default="label", description="column of the answer")
    classifier_pooling: ClassifierPooling = "cls"
    drop_labels: tuple[str, ...] = Field(
        default=(),
        description="labels to treat as unanswered: their rows are counted, and left out of"
        " training and metrics; by default - (no agreement) among labels of"
        " entailment",
    )
    header: HasHeader = True
    skip_ragged: bool = Field(
        default=False, description="leave out lines with too few or too many columns (QQP has some)"
    )
    max_skipped: MaxSkipped = MAX_SKIPPED
    overflow: Overflow = Field(
        default="right",
        description="how to read a text longer than max_length: truncate on the right or"
        " left, or use windows that overlap by half and average their answers,"
        " weighted by tokens",
    )
    metric: str | None = Field(
        default=None,
        description="metric that selects the best epoch, one of "
        + "; ".join(f"{', '.join(names)} ({kind})" for kind, names in METRICS.items())
        + "; of two labels also f1",
    )
    thresholds: dict[str, Share] = Field(
        default={},
        description="probability above which a label is given, LABEL=0.3: of several labels any,"
        " of two labels one; by default 0.5; --decisions.thresholds tunes it on dev",
    )

    @model_validator(mode="after")
    def _thresholds_fit(self) -> Self:
        if self.labels and self.threshold_problem:
            raise ValueError(self.threshold_problem)
        return self

    @property
    def threshold_problem(self) -> str:
        """Why the thresholds cannot be those of the labels, which are known; empty if they can."""
        unknown = next((name for name in self.thresholds if name not in self.labels), None)
        if unknown is not None:
            return f"a threshold of {unknown!r}, which is no label"
        if self.thresholds and self.kind == "single":
            if len(self.labels) != 2:
                return f"thresholds are for two labels, or several at once, not {len(self.labels)}"
            if len(self.thresholds) > 1:
                return "two thresholds of two labels: that of one decides"
        return ""

    def ignored_options(self) -> dict[str, str]:
        """Also labels of numbers, and thresholds of numbers."""
        of_labels = ("labels", "thresholds") if self.kind == "regression" else ()
        given = [name for name in of_labels if getattr(self, name)]
        return super().ignored_options() | dict.fromkeys(given, "is not for numbers")

    @property
    def criterion(self) -> str:
        """The configured metric, or the default of this kind."""
        return self.metric or METRICS[self.kind][0]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics that can select the best epoch, all but those of which less is better."""
        has_f1 = self.kind == "single" and len(self.labels) == 2
        return (*METRICS[self.kind], "f1") if has_f1 else METRICS[self.kind]

    @property
    def reads_pairs(self) -> bool | None:
        """Whether it reads pairs, not single texts; None where each example may be either."""
        return self.second_column is not None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The labels as clients of Hugging Face know them; that of a number has the usual name."""
        return self.labels or ("LABEL_0",)

    @property
    def score_function(self) -> ScoreFunction:
        """The function that turns outputs into scores by default."""
        usual: dict[str, ScoreFunction] = {
            "single": "softmax",
            "multiple": "sigmoid",
            "regression": "none",
        }
        return usual[self.kind]

    @property
    def head(self) -> HeadShape:
        """The pooler's classifier, with an output for each label or one for the number."""
        return pooled_head(max(len(self.labels), 1), self.classifier_pooling)

    @property
    def problem_type(self) -> str:
        """As `transformers` calls the kinds."""
        return {
            "single": "single_label_classification",
            "multiple": "multi_label_classification",
            "regression": "regression",
        }[self.kind]

    def examples(self, data: str | Path, split: str) -> list[Text]:
        """Reads a table, or a data set of the Hub; a record without an answer has None.

        `bert_core.tasks.label_values` defines what is no answer; a table of numbers that are all
        -1 hides them.
        """
        records = read_split(
            data,
            split,
            header=self.header,
            skip_ragged=self.skip_ragged,
            max_skipped=self.max_skipped,
            refuse_unused=self.refuses_unused,
        )
        return self._with_known_answers([self._text(record) for record in records])

    def label_names(self, examples: Sequence[Text]) -> set[str] | None:
        """The labels of examples; None for a number."""
        if self.kind == "regression":
            return None
        return {label for example in examples for label in _labels(example.answer)}

    def label_warnings(self) -> list[str]:
        """Labels that are hard to tell apart, or that may mean that there is none, or several."""
        odd = likeness_warnings(self.labels) + class_warnings(self.labels)
        several = divided_warnings(self.labels, multiple=self.kind == "multiple")
        return odd + several + quoted_warnings(self.labels)

    def unanswered(self, examples: Sequence[Text]) -> dict[str, int]:
        """Counts the examples without an answer, by the value in its place."""
        written = [
            label_of(value_of(Record(example.columns, example.where), self.label_column))
            for example in examples
            if example.answer is None
        ]
        reasons = Counter(
            "without a label" if each is None else f"labelled {each}" for each in written
        )
        return dict(reasons.most_common())

    def texts(self, example: Text) -> list[str]:
        """The text, and the second one of a pair."""
        return [example.first, *([] if example.second is None else [example.second])]

    def encode(self, examples: Sequence[Text], tokenizer: Tokenizer) -> EncodedRows:
        """One row for each example, or several windows, each an item with the example's label."""
        first = [example.first for example in examples]
        second = [example.second for example in examples]
        if self.reads_pairs:
            second = [each or "" for each in second]
        sequences = encode_sequences(tokenizer, first, second, self.max_length, self.overflow)
        ones = np.ones_like(sequences.lengths)
        places, place_counts = whole_rows(sequences.lengths, self.classifier_pooling)
        return EncodedRows(
            input_ids=sequences.input_ids,
            lengths=sequences.lengths,
            first_lengths=sequences.first_lengths,
            places=places,
            place_counts=place_counts,
            labels=self._encode_answers(examples)[sequences.text],
            labels_per_item=ones,
            rows_per_item=ones,
            example=sequences.text,
            num_tokens=sequences.num_tokens,
            truncated=sequences.truncated,
        )

    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """Cross entropy, binary cross entropy averaged over the labels, or squared error."""
        if self.kind == "regression":
            known = ~batch.labels.isnan()
            squared = (outputs - batch.labels.nan_to_num()).square() * known
            return squared.sum(), squared.new_zeros(())
        from bert_core.tasks.label_loss import PLAIN

        return self.label_loss(outputs, batch, PLAIN)

    @property
    def has_label_loss(self) -> bool:
        """Of labels, not of numbers."""
        return self.kind != "regression"

    @property
    def tunable(self) -> tuple[str, ...]:
        """Of labels; thresholds not where one of more than two labels is given."""
        if self.kind == "regression":
            return ()
        has_thresholds = self.kind == "multiple" or len(self.labels) in (0, 2)
        return ("temperature", "thresholds") if has_thresholds else ("temperature",)

    def label_loss(
        self, outputs: "Tensor", batch: TaskBatch, shape: "LabelLoss"
    ) -> "tuple[Tensor, Tensor]":
        """See `Task.label_loss`."""
        labels = batch.labels
        if self.kind == "single":
            total = shape.of_classes(outputs, labels)
            return total, (outputs.detach().argmax(-1) == labels).sum()
        known = ~labels.isnan()
        targets = labels.nan_to_num()
        each = shape.of_label_sets(outputs, targets)
        right = ((outputs.detach() > 0) == (targets > 0.5)).all(1) & known.all(1)
        return (each * known).mean(1).sum(), right.sum()

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Text]
    ) -> list[dict[str, Any]]:
        """`label` and `scores`, `labels` and `scores`, or `value`, for each example.

        What the windows of a text say is averaged by their tokens.
        """
        outputs = outputs_of_examples(outputs, rows, len(examples))
        if self.kind == "regression":
            return [{"value": float(value)} for value in outputs[:, 0]]
        if self.kind == "multiple":
            return self.decide(1 / (1 + np.exp(-outputs.astype(np.float64))))
        return self.decide(softmax(outputs))

    def decide(self, scores: npt.NDArray[np.float64]) -> list[dict[str, Any]]:
        """`label`, or `labels`, and `scores` of each example, given the scores [N, L] of labels."""
        named = [dict(zip(self.labels, row, strict=True)) for row in scores.tolist()]
        if self.kind == "multiple":
            return [
                {
                    "labels": [name for name, p in row.items() if p > self.threshold_of(name)],
                    "scores": row,
                }
                for row in named
            ]
        best = scores.argmax(axis=1)
        for name, threshold in self.thresholds.items():  # of one of two labels
            index = self.labels.index(name)
            best = np.where(scores[:, index] > threshold, index, 1 - index)
        return [
            {"label": self.labels[index], "scores": row}
            for index, row in zip(best.tolist(), named, strict=True)
        ]

    def threshold_of(self, label: str) -> float:
        """The probability above which a label is given."""
        return self.thresholds.get(label, 0.5)

    def metrics(self, predictions: Predictions, examples: Sequence[Text]) -> dict[str, float]:
        """Those of `METRICS`, `f1` of two labels, and the mean squared error of numbers."""
        if self.kind == "regression":
            gold = [_number(example) for example in examples]
            return correlation_metrics(gold, [prediction["value"] for prediction in predictions])
        if self.kind == "multiple":
            sets = [_labels(example.answer) for example in examples]
            found = [prediction["labels"] for prediction in predictions]
            return multi_label_metrics(sets, found, self.labels)
        gold = [str(example.answer) for example in examples]
        return label_metrics(gold, [prediction["label"] for prediction in predictions], self.labels)

    def _text(self, record: Record) -> Text:
        second = column(record, self.second_column) if self.second_column else None
        if self.second_column and (second is None or second != second):  # noqa: PLR0124 - NaN
            second = ""  # as in CSV
        return Text(
            first=text_of(record, self.text_column),
            second=None if second is None else str(second).strip(),
            answer=self._answer(value_of(record, self.label_column), record.where),
            where=record.where,
            columns=record.values,
        )

    def _answer(self, value: Any, where: str) -> Answer | None:  # noqa: ANN401 - a table holds anything
        may_be_list = self.kind == "multiple"
        if isinstance(value, dict if may_be_list else dict | list):
            raise TaskDataError(f"not a label, {str(value)[:40]!r}", where, "fix the label")
        if self.kind == "single":
            return label_of(value)
        if self.kind == "multiple":
            return _several_labels(value, where)
        return number_of(value, where)

    def _with_known_answers(self, texts: Sequence[Text]) -> list[Text]:
        """The texts, those whose answers say that there is none with None."""
        if self.kind == "regression":
            dropped = {number_of(each, "--options.drop_labels") for each in self.drop_labels}
            nothing = _HIDDEN if {text.answer for text in texts} <= _HIDDEN else dropped
            return [
                replace(text, answer=None) if text.answer in nothing else text for text in texts
            ]
        names = self.label_names(texts) or set()
        folded = {each.casefold() for each in names.union(self.labels)}
        if self.kind == "multiple" and folded <= _BITS:
            _refuse_indicators(texts)
        nothing = not_labels(names, self.labels, self.drop_labels)
        known = {name: as_known(name, self.labels) for name in names}
        if not nothing and all(name == label for name, label in known.items()):
            return list(texts)
        found = []
        for text in texts:
            labels = _labels(text.answer)
            answer = None if nothing & {*labels} else tuple(known[name] for name in labels)
            if isinstance(text.answer, str) and answer:
                (answer,) = answer
            found.append(text if text.answer is None else replace(text, answer=answer))
        return found

    def _encode_answers(self, examples: Sequence[Text]) -> np.ndarray:
        if self.kind == "regression":
            values = [
                np.nan if example.answer is None else _number(example) for example in examples
            ]
            return np.array(values, dtype=np.float32).reshape(-1, 1)
        number = {label: index for index, label in enumerate(self.labels)}
        if self.kind == "single":
            known = [
                IGNORE_INDEX
                if example.answer is None
                else self._number_of(example, example.answer, number)
                for example in examples
            ]
            return np.array(known, dtype=np.int64)
        targets = np.zeros((len(examples), len(self.labels)), dtype=np.float32)
        for row, example in zip(targets, examples, strict=True):
            if example.answer is None:
                row[:] = np.nan
            for label in _labels(example.answer):
                row[self._number_of(example, label, number)] = 1
        return targets

    def _number_of(self, example: Text, label: Answer, number: Mapping[str, int]) -> int:
        name = str(label)
        if name not in number:
            raise TaskDataError(
                f"unknown label {label!r}",
                example.where or example.first[:60],
                f"the model knows {', '.join(self.labels)}; training data without it need"
                " --options.labels with all of them; if it says that there is no label:"
                f" {drop_label_option(name)} (evaluate.py: {drop_label_of_trained(name)})",
            )
        return number[name]


def outputs_of_examples(outputs: FloatArray, rows: EncodedRows, num_examples: int) -> FloatArray:
    """The outputs [N, L] of examples from those of their rows, [R, L].

    What the windows of a text say is averaged by their tokens.
    """
    if len(outputs) == num_examples:
        return outputs
    sums = np.zeros((num_examples, outputs.shape[1]))
    np.add.at(sums, rows.example, outputs * rows.lengths[:, None])
    tokens = np.bincount(rows.example, rows.lengths, num_examples)
    return (sums / tokens[:, None]).astype(np.float32)


def _several_labels(
    value: Any,  # noqa: ANN401 - a table holds anything
    where: str,
) -> tuple[str, ...] | None:
    """The labels of a list, or of a text with commas: nothing between them, or at all, is none.

    A text may be a list as JSON or Python writes it, which is what pandas puts into a CSV file.
    """
    if isinstance(value, str):
        text = stripped(value)
        is_list = text.startswith("[") and text.endswith("]")
        value = _written_list(text, where) if is_list else text.split(",")
    parts = value if isinstance(value, list) else [value]
    found = [label_of(part) for part in parts if not isinstance(part, str) or stripped(part)]
    return None if None in found else tuple(filter(None, found))


def _refuse_indicators(texts: Sequence[Text]) -> None:
    """Raises `TaskDataError` for lists of 0 and 1, one for each label, where labels belong."""
    lengths = {len(text.answer) for text in texts if isinstance(text.answer, tuple)}
    if len(lengths) == 1 and min(lengths) > 1:
        first = next(text for text in texts if isinstance(text.answer, tuple))
        what = f"a list of 0 and 1, {', '.join(_labels(first.answer))[:40]}"
        raise TaskDataError(what, first.where, "write the names of the labels that are 1")


def _written_list(text: str, where: str) -> list[Any]:
    """The list that a text in brackets is; raises `TaskDataError` for one of another kind."""
    found = parse_cell(text)
    if isinstance(found, list) and not any(isinstance(each, list | dict) for each in found):
        return found
    raise TaskDataError(f"not a list of labels, {text[:40]!r}", where, "write them as ['x', 'y']")


def _labels(answer: Answer | None) -> tuple[str, ...]:
    if isinstance(answer, str):
        return (answer,)
    return answer if isinstance(answer, tuple) else ()


def _number(example: Text) -> float:
    assert isinstance(example.answer, float)
    return example.answer

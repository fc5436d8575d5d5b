"""Question answering: where in a context the answer starts and ends, or that it holds none.

The paper's figure 4 (c), sections 4.2 and 4.3.
Shapes: I questions, R rows (windows), W the longest row, P places (all tokens of all rows).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.model.layout import Packed
from bert_core.tasks.data_splits import is_on_hub, read_split
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch
from bert_core.tasks.question_rows import encode_questions
from bert_core.tasks.spans import (
    Limits,
    Span,
    add_probabilities,
    candidate_spans,
    distinct_answers,
)
from bert_core.tasks.squad import Question, read_squad, read_squad_table
from bert_core.tasks.squad_metrics import squad_metrics, squad_v2_metrics, tuned_threshold
from bert_core.tasks.tables import TaskDataError, split_file
from bert_core.tasks.task import FloatArray, HeadShape, Task
from bert_core.tasks.windows import Overflow

_ENDINGS = (".json", ".json.xz", ".json.gz")
_TABLES, _OTHER_TABLES = (".jsonl", ".parquet"), (".csv", ".tsv")


class QuestionAnswering(Task):
    """Finds the passage of a context that answers a question.

    The head answers at every token of a row; start and end are each a softmax over all of them,
    question and separators included, as in the published code. What cannot be an answer is left
    out when predictions are made. Windows without the answer are taught to point at [CLS].
    """

    architecture: ClassVar[str] = "BertForQuestionAnswering"
    unused: ClassVar[tuple[str, ...]] = ("labels",)

    max_length: int = Field(default=384, ge=8, description="longest row, in tokens")
    stride: int = Field(
        default=128, ge=1, description="tokens from the start of a window to that of the next"
    )
    overflow: Overflow = Field(
        default="window",
        description="what becomes of a context that is too long for a row: read in windows, or cut"
        " on the left or right",
    )
    max_query_length: int = Field(
        default=64,
        ge=1,
        description="tokens of a question that are kept; at most half of a row in any case",
    )
    max_answer_length: int = Field(default=30, ge=1, description="longest answer, in tokens")
    n_best: int = Field(default=20, ge=1, description="answers that a prediction lists")
    align_to_words: bool = Field(
        default=False, description="whether an answer that cuts a word has all of it instead"
    )
    no_answer: bool = Field(
        default=False, description="whether a context may hold no answer, as in SQuAD 2.0"
    )
    null_threshold: float = Field(
        default=0.0, description="a null score above this means no answer; tuned on the dev split"
    )

    def ignored_options(self) -> dict[str, str]:
        """Also what is for windows, or for questions without an answer, where there are none."""
        found = super().ignored_options()
        fields = QuestionAnswering.model_fields
        if self.overflow != "window" and self.stride != fields["stride"].default:
            found["stride"] = "is for windows, and overflow says that there are none"
        if not self.no_answer and self.null_threshold != fields["null_threshold"].default:
            found["null_threshold"] = "is for no_answer, which is not set"
        return found

    @property
    def criterion(self) -> str:
        """F1; where there may be no answer, at its best threshold, as the paper chooses it."""
        return "best_f1" if self.no_answer else "f1"

    @property
    def head(self) -> HeadShape:
        """Two outputs at every token: start and end."""
        return HeadShape("span", 2, pooled=False)

    def examples(self, data: str | Path, split: str) -> list[Question]:
        """Reads SQuAD's JSON: `dev-v1.1.json` (v2.0 with `no_answer`), `dev.json`, compressed too.

        Or its columns, from a table such as `dev.jsonl` or `dev.csv`, or the Hub. Without
        `no_answer` raises `TaskDataError` for a question that has no answer.
        """
        version = "-v2.0" if self.no_answer else "-v1.1"
        endings = [f"{name}{ending}" for name in (version, "") for ending in _ENDINGS]
        if not is_on_hub(data):
            data = split_file(data, split, [*endings, *_TABLES], (".jsonl.gz", *_OTHER_TABLES))
        if isinstance(data, Path) and data.suffix not in _TABLES + _OTHER_TABLES:
            questions = read_squad(data)
        else:
            questions = read_squad_table(read_split(data, split))
        without = next((each for each in questions if each.answers == ()), None)
        if without is not None and not self.no_answer:
            remedy = "set no_answer, as the task squad_v2 does"
            raise TaskDataError("a question without an answer", without.where, remedy)
        return questions

    def encode(
        self, examples: Sequence[Question], tokenizer: Tokenizer, max_tokens: int | None = None
    ) -> EncodedRows:
        """One row, and one item, for each window; see `encode_questions`."""
        return encode_questions(
            tokenizer,
            examples,
            max_length=self.max_length,
            stride=self.stride,
            max_query_length=self.max_query_length,
            overflow=self.overflow,
            max_tokens=max_tokens,
        )

    def loss(self, outputs: Tensor, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        """Half the cross entropies of start and end; right is a window with both right."""
        logits = _by_row(outputs, batch)  # [2, R, W]
        targets = batch.labels.T  # [2, R]
        total = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return total / 2, (logits.detach().argmax(-1) == targets).all(0).sum()

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Question]
    ) -> list[dict[str, Any]]:
        """The answer to each question: `text`, which is `context[start:end]`, and how sure it is.

        - `score`, start plus end logit; `probability`, its share in the softmax over `n_best`
        - `n_best`, different answers, best first; with `no_answer` the empty one is among them
        - `null_score`, by how much the score of giving no answer exceeds that of the best answer

        With `no_answer` the text is empty where `null_score` is above `null_threshold`. It is
        empty, too, where there is nothing to choose from.
        """
        limits = Limits(self.max_answer_length, self.n_best)
        found, nulls = candidate_spans(outputs, rows, len(examples), limits=limits)
        return [
            self._prediction(example.context, spans, null)
            for example, spans, null in zip(examples, found, nulls.tolist(), strict=True)
        ]

    def metrics(
        self, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Question]
    ) -> dict[str, float]:
        """Exact match and F1; with `no_answer` by kind of question, and at the best thresholds."""
        golds = [[answer.text for answer in each.answers or ()] for each in examples]
        texts = [each["text"] for each in predictions]
        if not self.no_answer:
            return squad_metrics(texts, golds)
        return squad_v2_metrics(texts, *_best_and_null(predictions), golds)

    def tuned(self, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Question]) -> Self:
        """This task with the null threshold at which these predictions have the best F1."""
        if not self.no_answer:
            return self
        golds = [[answer.text for answer in each.answers or ()] for each in examples]
        threshold = tuned_threshold(*_best_and_null(predictions), golds)
        return self.model_copy(update={"null_threshold": threshold})

    def _prediction(self, context: str, spans: list[Span], null: float) -> dict[str, Any]:
        answers = distinct_answers(context, spans, self.n_best, whole_words=self.align_to_words)
        nothing = {"text": "", "start": 0, "end": 0, "score": null}
        best = answers[0] if answers else nothing
        if self.no_answer or not answers:
            answers.append(nothing)
            answers.sort(key=lambda answer: -answer["score"])
        add_probabilities(answers)
        null_score = null - best["score"]
        chosen = nothing if self.no_answer and null_score > self.null_threshold else best
        return {**chosen, "null_score": null_score, "n_best": answers}


def _best_and_null(
    predictions: Sequence[Mapping[str, Any]],
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The best answer of each prediction that has a text, and the null scores."""
    best = [
        next((answer["text"] for answer in each["n_best"] if answer["text"]), "")
        for each in predictions
    ]
    return best, np.array([each["null_score"] for each in predictions], dtype=np.float64)


def _by_row(outputs: Tensor, batch: TaskBatch) -> Tensor:
    """Outputs [P, 2] as [2, R, W], minus infinity behind the end of a row.

    The width is known to the host, so nothing waits for the device.
    """
    layout, counts = batch.layout, batch.place_counts
    width = layout.max_length if isinstance(layout, Packed) else layout.mask.shape[1]
    rows = torch.arange(len(counts), device=counts.device)
    row = torch.repeat_interleave(rows, counts, output_size=len(outputs))
    first = counts.cumsum(0) - counts
    within = torch.arange(len(outputs), device=counts.device) - first[row]
    padded = outputs.new_full((len(counts), width, 2), -torch.inf)
    padded[row, within] = outputs
    return padded.permute(2, 0, 1)

"""Question answering: the span of a context that answers a question, or none (SQuAD 1.1 and 2.0).

Devlin et al. 2018, sections 4.2 and 4.3: rows are `[CLS] question [SEP] window [SEP]`, and each
token has a logit as start and one as end of the answer.
Shapes: I questions, R rows (windows), C tokens of all contexts end to end, T tokens of all rows,
P places, W width of the padded rows.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field
from tokenizers import Tokenizer

from bert_core.config import IGNORE_INDEX
from bert_core.special_tokens import special_token_ids
from bert_core.tasks.answer_spans import (
    Limits,
    Span,
    add_probabilities,
    candidate_spans,
    distinct_answers,
)
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch, concatenated
from bert_core.tasks.metrics import squad_metrics, squad_v2_metrics, tuned_threshold
from bert_core.tasks.sequences import (
    AlignedTokens,
    Overflow,
    Windows,
    align,
    cut,
    slide,
    token_ids,
)
from bert_core.tasks.squad import Answer, Question, read_squad, read_squad_table
from bert_core.tasks.tables import TaskDataError, is_on_hub, read_split, split_file
from bert_core.tasks.task import FloatArray, HeadShape, Predictions, Task
from bert_core.text.rng import IntArray, ragged_arange

if TYPE_CHECKING:
    from torch import Tensor

_ENDINGS, _TABLES = (".json", ".json.xz", ".json.gz"), (".jsonl", ".parquet")
_OTHER_TABLES = (".csv", ".tsv")
_NOWHERE = Answer("", -1)
_NEARBY = 10  # characters

MISALIGNED = "answers not found at their answer_start"
UNTOKENIZED = "answers that match no token"
"""Why a question may teach nothing."""
MOVED = "answers found near their answer_start"
REPEATED = "questions with a repeated id"


class QuestionAnswering(Task):
    """Finds the passage of a context that answers a question.

    The head answers at every token of a row; start and end are each a softmax over all of them,
    question and separators included, as in the published code. What cannot be an answer is left
    out when predictions are made. Windows without the answer are taught to point at [CLS].
    """

    architecture: ClassVar[str] = "BertForQuestionAnswering"
    unused: ClassVar[tuple[str, ...]] = ("labels",)

    max_length: int = Field(default=384, ge=8, description="longest row")
    stride: int | None = Field(
        default=None,
        ge=1,
        description="tokens between the starts of two windows; by default a third of max_length",
    )
    overflow: Overflow = Field(
        default="window",
        description="how to read a context longer than a row: in windows, or truncated on the"
        " left or right",
    )
    max_query_length: int = Field(
        default=64, ge=1, description="tokens read of a question; at most half of a row"
    )
    max_answer_length: int = Field(default=30, ge=1, description="longest answer, in tokens")
    n_best: int = Field(default=20, ge=1, description="number of answers in a prediction")
    align_to_words: bool = Field(
        default=False, description="whether to extend an answer that cuts a word to the whole word"
    )
    no_answer: bool = Field(
        default=False, description="whether a context may have no answer, as in SQuAD 2.0"
    )
    null_threshold: float = Field(
        default=0.0, description="a null score above this means no answer; tuned on the dev split"
    )

    def ignored_options(self) -> dict[str, str]:
        """Also options of windows, or of questions without an answer, where there are none."""
        found, fields = super().ignored_options(), QuestionAnswering.model_fields
        usual = self.model_copy(update={"stride": None}).step
        if self.overflow != "window" and self.step != usual:
            found["stride"] = "needs overflow window"
        if not self.no_answer and self.null_threshold != fields["null_threshold"].default:
            found["null_threshold"] = "needs no_answer"
        return found

    @property
    def step(self) -> int:
        """Tokens between the starts of two windows: such that they overlap, unless it is given."""
        return self.stride or max(1, self.max_length // 3)  # the paper's: 128 of 384

    def written(self) -> dict[str, Any]:
        """With the stride as a number."""
        return super().written() | {"stride": self.step}

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
        for question in questions if not self.no_answer else ():
            if question.answers == ():
                remedy = "set no_answer, as the task squad_v2 does"
                raise TaskDataError("a question without an answer", question.where, remedy)
        return questions

    def texts(self, example: Question) -> list[str]:
        """The question and its context."""
        return [example.question, example.context]

    def encode(
        self,
        examples: Sequence[Question],
        tokenizer: Tokenizer,
        max_tokens: int | None = None,
        overlap: int | None = None,
    ) -> EncodedRows:
        """One row, and one item, for each window of a context; a context is tokenized once.

        Or one row for each question, its context cut on the side that `overflow` says.

        All tokens of a row are places. Labels are start and end [R, 2], counted within the row;
        [CLS] (0) where the window lacks a part of the answer, or there is none. A question whose
        answer is not known, or was lost, carries no loss. Notes:

        - `offsets` [C, 2], first character of each context token, and the one after its last
        - `first_token` [R], index in `offsets` of the first token of a window
        - `window_start` [R], the same token, counted within its context

        `lost` has the ids of questions whose answer is not at its `answer_start` or near it, and
        of those whose answer shares no character with any token. With an `overlap` windows share
        so many tokens, whatever the stride. Raises `TooManyTokensError`,
        before any window is made, where rows have more than `max_tokens` in all.
        """
        numbers: dict[str, int] = {}
        context = concatenated(
            [[numbers.setdefault(example.context, len(numbers)) for example in examples]]
        )
        contexts = align(tokenizer, list(numbers))
        query_ids = token_ids(tokenizer, [example.question for example in examples])
        query_lengths = concatenated([[len(query) for query in query_ids]])
        num_special = special_token_ids(tokenizer).num_of_pair
        # However short the rows, half of one is left to the context.
        most = min(self.max_query_length, (self.max_length - num_special) // 2)
        kept = np.minimum(query_lengths, most)
        context_lengths, rooms = contexts.lengths[context], self.max_length - num_special - kept
        if self.overflow == "window":
            beside = kept + num_special
            most = self.max_length  # a number of any size may come over HTTP
            step = self.step if overlap is None else np.maximum(rooms - min(overlap, most), 1)
            windows = slide(context_lengths, rooms, step, beside=beside, max_tokens=max_tokens)
            truncated = kept < query_lengths
        else:
            windows = cut(context_lengths, rooms, self.overflow)
            truncated = (kept < query_lengths) | (windows.lengths < context_lengths)
        first_token = contexts.first_tokens[context[windows.text]] + windows.starts
        row_queries = kept[windows.text]
        golds = [_gold(example) for example in examples]
        first_lengths = row_queries + num_special - 1
        labels, lost = _labels(examples, golds, context, contexts, windows, first_lengths)
        lengths = row_queries + windows.lengths + num_special
        ones = np.ones_like(lengths)
        return EncodedRows(
            input_ids=_assemble(tokenizer, query_ids, row_queries, windows, contexts, first_token),
            lengths=lengths,
            first_lengths=first_lengths,
            places=ragged_arange(np.zeros_like(lengths), lengths),
            place_counts=lengths,
            labels=labels,
            labels_per_item=ones,
            rows_per_item=ones,
            example=windows.text,
            num_tokens=query_lengths + context_lengths + num_special,
            truncated=truncated,
            limited_part=("question", query_lengths, most),
            notes={
                "offsets": contexts.offsets,
                "first_token": first_token,
                "window_start": windows.starts,
            },
            lost={
                reason: tuple(examples[index].id for index in indices.tolist())
                for reason, indices in lost.items()
                if len(indices)
            },
            counts=_counts(examples, golds),
        )

    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """Half the cross entropies of start and end; right is a window with both right."""
        from torch.nn import functional as F

        logits = by_row(outputs, batch)  # [2, R, W]
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

    def metrics(self, predictions: Predictions, examples: Sequence[Question]) -> dict[str, float]:
        """Exact match and F1; with `no_answer` by kind of question, and at the best thresholds."""
        texts, golds = [prediction["text"] for prediction in predictions], gold_texts(examples)
        if not self.no_answer:
            return squad_metrics(texts, golds)
        return squad_v2_metrics(texts, *best_and_null(predictions), golds)

    def tuned(self, predictions: Predictions, examples: Sequence[Question]) -> Self:
        """This task with the null threshold at which these predictions have the best F1."""
        if not self.no_answer:
            return self
        threshold = tuned_threshold(*best_and_null(predictions), gold_texts(examples))
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


def gold_texts(examples: Sequence[Question]) -> list[list[str]]:
    """The right answers of each question; none where it has none, or they are not known."""
    return [[answer.text for answer in example.answers or ()] for example in examples]


def best_and_null(predictions: Predictions) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The best answer of each prediction that has a text, and the null scores."""
    best = [
        next((answer["text"] for answer in prediction["n_best"] if answer["text"]), "")
        for prediction in predictions
    ]
    return best, np.array([prediction["null_score"] for prediction in predictions], np.float64)


def by_row(outputs: "Tensor", batch: TaskBatch) -> "Tensor":
    """Outputs [P, 2] as [2, R, W], minus infinity behind the end of a row.

    The width is known to the host, so nothing waits for the device.
    """
    import torch

    from bert_core.model.layout import Packed

    layout, counts = batch.layout, batch.place_counts
    width = layout.max_length if isinstance(layout, Packed) else layout.mask.shape[1]
    rows = torch.arange(len(counts), device=counts.device)
    row = torch.repeat_interleave(rows, counts, output_size=len(outputs))
    first = counts.cumsum(0) - counts
    within = torch.arange(len(outputs), device=counts.device) - first[row]
    padded = outputs.new_full((len(counts), width, 2), -torch.inf)
    padded[row, within] = outputs
    return padded.permute(2, 0, 1)


def _counts(questions: Sequence[Question], golds: Sequence[Answer]) -> dict[str, int]:
    """Counts answers found near their start, and repeated ids, where there are any."""
    pairs = zip(questions, golds, strict=True)
    names = [question.id for question in questions if question.id]
    moved = (gold is not _NOWHERE and gold not in (each.answers or ()) for each, gold in pairs)
    counts = {MOVED: sum(moved), REPEATED: len(names) - len(set(names))}
    return {name: count for name, count in counts.items() if count}


def _labels(
    questions: Sequence[Question],
    golds: Sequence[Answer],
    context: IntArray,
    contexts: AlignedTokens,
    windows: Windows,
    first_lengths: IntArray,
) -> tuple[IntArray, dict[str, IntArray]]:
    """Start and end within each row, [R, 2], and the indices of questions that lost their answer.

    `golds` are the answers that count, one for each question.
    """
    begins = concatenated([[gold.start for gold in golds]])
    ends = begins + concatenated([[len(gold.text) for gold in golds]])
    first, last = contexts.token_spans(context, begins, ends)  # [I] each
    has_answer = np.array([bool(question.answers) for question in questions], dtype=bool)
    lost = {
        MISALIGNED: np.flatnonzero(has_answer & (begins < 0)),
        UNTOKENIZED: np.flatnonzero(has_answer & (begins >= 0) & (first > last)),
    }
    unknown = np.array([question.answers is None for question in questions], dtype=bool)
    unknown[np.concatenate([*lost.values()])] = True
    row = windows.text
    inside = has_answer[row] & (first[row] >= windows.starts)
    inside &= last[row] < windows.starts + windows.lengths
    labels = np.stack([first, last], axis=1)[row] - windows.starts[:, None]
    labels = np.where(inside[:, None], labels + first_lengths[:, None], 0)
    labels[unknown[row]] = IGNORE_INDEX
    return labels, lost


def _gold(question: Question) -> Answer:
    """The first answer at its `answer_start`, or else the first that is nearby."""
    answers, context = question.answers or (), question.context
    for answer in answers:
        if answer.start >= 0 and context.startswith(answer.text, answer.start):
            return answer
    return next(filter(None, (_nearby(answer, context) for answer in answers)), _NOWHERE)


def _nearby(answer: Answer, context: str) -> Answer | None:
    """The nearest occurrence of the answer's text without outer spaces, if plausible.

    That is a few characters off, fewer for a short text, or the only occurrence.
    """
    text = answer.text.strip()
    stated = max(answer.start, 0) + len(answer.text) - len(answer.text.lstrip())
    places = (context.find(text, stated), context.rfind(text, 0, stated + len(text)))
    found = [place for place in places if place >= 0]
    if not text or not found:
        return None
    nearest = min(found, key=lambda place: abs(place - stated))
    is_near = answer.start >= 0 and abs(nearest - stated) <= min(_NEARBY, max(2, len(text)))
    return Answer(text, nearest) if is_near or context.count(text) == 1 else None


def _assemble(
    tokenizer: Tokenizer,
    query_ids: list[list[int]],
    row_queries: IntArray,
    windows: Windows,
    contexts: AlignedTokens,
    first_token: IntArray,
) -> IntArray:
    special = special_token_ids(tokenizer)
    queries = np.fromiter(chain.from_iterable(query_ids), np.int64)
    query_lengths = concatenated([[len(query) for query in query_ids]])
    first_of_query = (np.cumsum(query_lengths) - query_lengths)[windows.text]
    lengths = row_queries + windows.lengths + special.num_of_pair
    first = np.cumsum(lengths) - lengths
    input_ids = np.full(int(lengths.sum()), special.sep, dtype=np.int64)
    input_ids[first] = special.cls
    within_queries = ragged_arange(first_of_query, row_queries)
    input_ids[ragged_arange(first + 1, row_queries)] = queries[within_queries]
    places = ragged_arange(first + lengths - 1 - windows.lengths, windows.lengths)
    input_ids[places] = contexts.input_ids[ragged_arange(first_token, windows.lengths)]
    return input_ids

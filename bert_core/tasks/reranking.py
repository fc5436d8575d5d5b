"""Reranking: how well each of several passages answers a query, read together with it.

A cross-encoder (Nogueira & Cho 2019, arXiv 1901.04085): `[CLS] query [SEP] passage [SEP]`, and a
score from the pooler. The passages are those that a first stage has found.
Shapes: N queries, P passages of all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatch, whole_rows
from bert_core.tasks.label_values import number_of
from bert_core.tasks.retrieval import METRICS, ranking_metrics
from bert_core.tasks.sequences import encode_sequences
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
)

if TYPE_CHECKING:
    from torch import Tensor

FIRST_STAGE = "first_stage_"
"""Begins the names of metrics of the order that the data have."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A query and passages, in the order of the first stage; `answer` has how relevant each is.

    None where that is not known of all of them.
    """

    query: str
    passages: tuple[str, ...]
    answer: tuple[float, ...] | None
    where: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


class Reranking(Task):
    """Orders passages by how well they answer a query."""

    architecture: ClassVar[str] = "BertForSequenceClassification"
    unused: ClassVar[tuple[str, ...]] = ("labels",)

    query_column: str = Field(default="query", description="column of the query")
    passage_column: str = Field(
        default="passages",
        description="column of the passages, a list in the order of the first stage; or of one, in"
        " rows that follow each other",
    )
    score_column: str = Field(
        default="scores",
        description="column of how relevant each is: 0 and 1, or the scores of a teacher",
    )
    classifier_pooling: ClassifierPooling = "cls"
    header: bool = Field(default=True, description="whether a table's first line names its columns")
    objective: Literal["binary", "listwise", "margin"] = Field(
        default="binary",
        description="binary: the cross entropy of each passage, scores 0 to 1; listwise: that of a"
        " query's passages; margin: squared error of differences to the first passage, a teacher's",
    )
    candidates: int = Field(
        default=8, ge=2, description="passages of a query in training, the most relevant first"
    )

    @property
    def criterion(self) -> str:
        """The metric that selects the best epoch; more of it is better."""
        return "ndcg_at_10"

    @property
    def head(self) -> HeadShape:
        """The pooler's classifier with one output, the score of a passage."""
        return pooled_head(1, self.classifier_pooling)

    @property
    def of_pairs(self) -> Classification:
        """The same question about one passage: the score of a pair, as it is."""
        return Classification(
            kind="regression",
            second_column="passage",
            max_length=self.max_length,
            classifier_pooling=self.classifier_pooling,
        )

    @property
    def problem_type(self) -> str:
        """A score is a number, of which none is right or wrong."""
        return "regression"

    def examples(self, data: str | Path, split: str) -> list[Candidates]:
        """Reads a table, or a data set of the Hub: a list of passages a row, or a passage a row.

        The passages of a query are put together wherever their rows stand. Of train each query
        keeps `candidates` passages. Raises `TaskDataError` for scores that the objective cannot
        use.
        """
        found: list[Candidates] = []
        last: dict[str, int] = {}
        for record in read_split(data, split, header=self.header):
            example = self._example(record)
            place = last.get(example.query) if len(example.passages) == 1 else None
            if place is not None:
                found[place] = _joined(found[place], example)
                continue
            if len(example.passages) == 1:
                last[example.query] = len(found)
            found.append(example)
        return [self._fewer(each) for each in found] if split == "train" else found

    def texts(self, example: Candidates) -> list[str]:
        """The query, and all passages."""
        return [example.query, *example.passages]

    def encode(self, examples: Sequence[Candidates], tokenizer: Tokenizer) -> EncodedRows:
        """A row for each passage; its label is its score, and the number of its query."""
        counts = np.array([len(each.passages) for each in examples], dtype=np.int64)
        queries = [each.query for each in examples for _ in each.passages]
        passages = [passage for each in examples for passage in each.passages]
        sequences = encode_sequences(tokenizer, queries, passages, self.max_length)
        example = np.repeat(np.arange(len(examples)), counts)
        scores = [
            score for each in examples for score in (each.answer or (np.nan,) * len(each.passages))
        ]
        places, place_counts = whole_rows(sequences.lengths, self.classifier_pooling)
        tokens, truncated = np.zeros_like(counts), np.zeros(len(counts), dtype=np.bool_)
        np.add.at(tokens, example, sequences.num_tokens)
        np.logical_or.at(truncated, example, sequences.truncated)
        return EncodedRows(
            input_ids=sequences.input_ids,
            lengths=sequences.lengths,
            first_lengths=sequences.first_lengths,
            places=places,
            place_counts=place_counts,
            labels=np.stack([np.array(scores), example], axis=1).astype(np.float32),
            labels_per_item=counts,
            rows_per_item=counts,
            example=example,
            num_tokens=tokens,
            truncated=truncated,
        )

    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """The summed loss of all passages: a query counts as many times as it has passages.

        - binary: cross entropy of the sigmoid
        - listwise: cross entropy between the softmax of a query's passages and their scores, which
          are made to add up to 1 (Cao et al. 2007; of one relevant passage, its log softmax)
        - margin: of each score less that of the query's first passage (Hofstätter et al. 2020,
          arXiv 2010.02666)
        """
        import torch
        from torch.nn import functional as F

        scores, targets = outputs[:, 0], batch.labels[:, 0]
        known = ~targets.isnan()
        scores, targets = scores[known], targets[known]
        if self.objective == "binary":
            each = F.binary_cross_entropy_with_logits(scores, targets, reduction="sum")
            return each, each.new_zeros(())
        _, query, sizes = torch.unique_consecutive(
            batch.labels[known, 1], return_inverse=True, return_counts=True
        )
        if self.objective == "margin":
            firsts = (sizes.cumsum(0) - sizes)[query]
            wrong = (scores - scores[firsts]) - (targets - targets[firsts])
            return wrong.square().sum(), wrong.new_zeros(())
        zeros = scores.new_zeros(len(sizes))
        best = zeros.scatter_reduce(0, query, scores.detach(), "amax", include_self=False)
        shifted = scores - best[query]
        total = zeros.index_add(0, query, shifted.exp())
        sums = zeros.index_add(0, query, targets).clamp(min=1e-12)
        each = -(targets / sums[query]) * (shifted - total.log()[query])
        return (each * sizes[query]).sum(), each.new_zeros(())

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[Candidates]
    ) -> list[dict[str, Any]]:
        """The `order` of each query's passages, best first, and the `scores` of all, as they are.

        Where a relevant one is known, also `METRICS` of that order and of the first stage's.
        """
        ends = np.cumsum(rows.rows_per_item)
        scores = np.split(outputs[:, 0], ends[:-1]) if len(ends) else []
        orders = [np.argsort(-each, kind="stable").tolist() for each in scores]
        found: list[dict[str, Any]] = [
            {"order": order, "scores": each.tolist()}
            for order, each in zip(orders, scores, strict=True)
        ]
        judged = {n: _relevance(each) for n, each in enumerate(examples) if each.answer is not None}
        known = [number for number, passages in judged.items() if passages]
        relevant = [judged[number] for number in known]
        given = [list(range(len(examples[number].passages))) for number in known]
        ours = ranking_metrics([orders[number] for number in known], relevant)
        first = ranking_metrics(given, relevant)
        for number, metrics, before in zip(known, ours, first, strict=True):
            found[number] |= metrics
            found[number] |= {f"{FIRST_STAGE}{name}": value for name, value in before.items()}
        return found

    def metrics(self, predictions: Predictions, examples: Sequence[Candidates]) -> dict[str, float]:
        """Means of `METRICS` over queries, of the model's order and of the first stage's.

        As trec_eval has it, those without a relevant passage are left out; 0 where all are.
        """
        del examples
        names = [*METRICS, *(FIRST_STAGE + name for name in METRICS)]
        known = [found for found in predictions if names[0] in found]
        return {
            name: float(np.mean([found[name] for found in known])) if known else 0.0
            for name in names
        }

    def _example(self, record: Record) -> Candidates:
        query = text_of(record, self.query_column)
        passages = parse_cell(column(record, self.passage_column))
        passages = passages if isinstance(passages, list) else [passages]
        if not passages or not all(isinstance(each, str) and each.strip() for each in passages):
            what = f"no passages in column {self.passage_column}"
            raise TaskDataError(what, record.where, "write a text, or a list of texts")
        given = parse_cell(value_of(record, self.score_column))
        scores = given if isinstance(given, list) else [given]
        known = [self._score(each, record.where) for each in scores]
        answer = None
        if any(score is not None for score in known):
            answer = tuple(score for score in known if score is not None)
            if len(answer) != len(passages):
                what = f"{len(answer)} scores of {len(passages)} passages"
                raise TaskDataError(what, record.where, "give each passage one, or none of them")
        stripped = tuple(each.strip() for each in passages)
        return Candidates(query, stripped, answer, record.where, record.values)

    def _score(self, value: Any, where: str) -> float | None:  # noqa: ANN401 - a table holds anything
        score = number_of(value, where)
        if score is None:
            return None
        if self.objective == "binary" and not 0 <= score <= 1:
            remedy = "give 0 to 1, or --options.objective margin (a teacher's) or listwise"
            raise TaskDataError(f"a score of {score:g}", where, remedy)
        if self.objective == "listwise" and score < 0:
            remedy = "give 0 or more, or --options.objective margin"
            raise TaskDataError(f"a score of {score:g}", where, remedy)
        return score

    def _fewer(self, example: Candidates) -> Candidates:
        """At most `candidates` of the passages: the most relevant, of equals the first."""
        if len(example.passages) <= self.candidates:
            return example
        scores = example.answer or (0.0,) * len(example.passages)
        order = sorted(range(len(scores)), key=lambda place: -scores[place])[: self.candidates]
        return replace(
            example,
            passages=tuple(example.passages[place] for place in order),
            answer=None if example.answer is None else tuple(scores[place] for place in order),
        )


def _joined(first: Candidates, second: Candidates) -> Candidates:
    answer = None
    if first.answer is not None and second.answer is not None:
        answer = first.answer + second.answer
    return replace(first, passages=first.passages + second.passages, answer=answer)


def _relevance(example: Candidates) -> dict[int, float]:
    """Which passages count as relevant: of 0 and 1 those of 1, of other scores the highest."""
    scores = np.array(example.answer)
    highest = scores.max(initial=-np.inf)
    if set(scores.tolist()) <= {0.0, 1.0}:
        return dict.fromkeys(np.flatnonzero(scores == 1).tolist(), 1.0)
    return dict.fromkeys(np.flatnonzero(scores == highest).tolist(), 1.0)

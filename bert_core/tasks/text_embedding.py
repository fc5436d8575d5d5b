"""Text embedding: one vector of each text, near those of texts that belong to it.

Vectors are made as sentence-transformers does it (Reimers & Gurevych 2019, arXiv 1908.10084): the
mean of the last layer's states, or that of [CLS]; or sparse, a weight for each word of the
vocabulary (SPLADE, see `bert_core.model.word_weights`).
Shapes: N examples, U different texts, R rows (one of each text), H numbers of a vector.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator
from tokenizers import Tokenizer

from bert_core.interface import RelationKind
from bert_core.tasks.encoded_rows import (
    EncodedRows,
    RowPooling,
    TaskBatch,
    concatenated,
    whole_rows,
)
from bert_core.tasks.label_values import label_of, number_of
from bert_core.tasks.metrics import correlation_metrics
from bert_core.tasks.retrieval import DEPTH, METRICS, nearest, normalized, ranking_metrics
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
from bert_core.tasks.task import FloatArray, HeadShape, Predictions, Task
from bert_core.text.rng import IntArray, ragged_arange

if TYPE_CHECKING:
    from torch import Tensor

    from bert_core.tasks.contrastive import Groups

_CRITERIA: dict[RelationKind, str] = {
    "pairs": "ndcg_at_10",
    "scores": "spearman",
    "labels": "accuracy",
    "texts": "spearman",
}

_TEXTS, _COUNTS, _VALUES = "texts", "text_counts", "values"
"""Notes of rows: the rows of each example's texts, end to end, how many they are, and the numbers
of the classes."""


SIZES = ("query_words", "passage_words")
"""Metrics of sparse vectors: how many words have a weight, which is what a search costs."""


@dataclass(frozen=True, slots=True)
class RelatedTexts:
    """A query and passages, of which the first belongs to it; or two texts and their score; or one.

    `answer` is True of pairs and bare texts, a score, or a class; None where it is not known.
    """

    texts: tuple[str, ...]
    answer: bool | float | str | None
    where: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


class TextEmbedding(Task):
    """Makes a vector of each text."""

    architecture: ClassVar[str] = "BertModel"
    is_coupled: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ("labels",)

    kind: RelationKind = Field(
        default="pairs",
        description="what an example is: pairs of a query and its passage (ranking loss), scores of"
        " two texts (CoSENT), labels of texts, or bare texts (SimCSE; dev has scores)",
    )
    query_column: str = Field(default="query", description="column of the query, or the first text")
    passage_column: str = Field(
        default="passage", description="column of the passage, or the second text"
    )
    negative_columns: tuple[str, ...] = Field(
        default=(), description="columns of passages that do not belong to the query"
    )
    score_column: str = Field(default="score", description="column of the score; more is nearer")
    text_column: str = Field(default="text", description="column of the text of labels or texts")
    label_column: str = Field(default="label", description="column of the label")
    header: bool = Field(default=True, description="whether a table's first line names its columns")
    vectors: Literal["dense", "sparse"] = Field(
        default="dense",
        description="dense: of the states; sparse: a weight for each word of the vocabulary, by the"
        " masked-token head (SPLADE)",
    )
    pooling: RowPooling = Field(
        default="mean", description="mean of all tokens' states, or that of [CLS]"
    )
    scale: float | None = Field(
        default=None,
        gt=0,
        description="what cosines are multiplied by in the loss, or products of sparse vectors; by"
        " default 20, or 1",
    )
    query_flops: float = Field(
        default=5e-5, ge=0, description="share of the loss that keeps sparse vectors of queries so"
    )
    passage_flops: float = Field(
        default=3e-5, ge=0, description="the same of passages, which are longer"
    )
    matryoshka: tuple[int, ...] = Field(
        default=(), description="sizes whose first numbers are trained as vectors of their own"
    )
    query_prompt: str = Field(default="", description="what stands before each query")
    passage_prompt: str = Field(default="", description="what stands before each passage")

    @model_validator(mode="after")
    def _sparse_vectors_are_of_pairs(self) -> Self:
        if self.is_sparse and self.kind != "pairs":
            raise ValueError(f"sparse vectors learn from pairs, not from {self.kind}")
        return self

    @field_validator("matryoshka")
    @classmethod
    def _sizes_are_positive(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in sizes):
            raise ValueError("a size is less than 1")
        return sizes

    def ignored_options(self) -> dict[str, str]:
        """Also columns of other kinds, and prompts of what is neither query nor passage."""
        found = super().ignored_options()
        of_kinds = {
            "query_column": ("pairs", "scores", "texts"),
            "passage_column": ("pairs", "scores", "texts"),
            "negative_columns": ("pairs",),
            "score_column": ("scores", "texts"),
            "text_column": ("labels", "texts"),
            "label_column": ("labels",),
            "query_prompt": ("pairs",),
            "passage_prompt": ("pairs",),
        }
        for name, kinds in of_kinds.items():
            if self.kind not in kinds and self._is_given(name):
                found[name] = f"has no effect on {self.kind}"
        others = ("query_flops", "passage_flops")
        for name in ("pooling", "matryoshka") if self.is_sparse else others:
            if self._is_given(name):
                found[name] = f"has no effect on {self.vectors} vectors"
        return found

    def _is_given(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default

    @property
    def is_sparse(self) -> bool:
        """Whether a vector has a weight for each word of the vocabulary."""
        return self.vectors == "sparse"

    @property
    def loss_scale(self) -> float:
        """What cosines, or products, are multiplied by in the loss."""
        return self.scale or (1.0 if self.is_sparse else 20.0)

    @property
    def criterion(self) -> str:
        """The metric that selects the best epoch; more of it is better."""
        return _CRITERIA[self.kind]

    @property
    def head(self) -> HeadShape:
        """The vectors themselves."""
        name = "masked_token" if self.is_sparse else "vectors"
        return HeadShape(name, 0, pooled=False, per_row=True)

    @property
    def problem_type(self) -> str | None:
        """Scores are numbers, of which none is right or wrong."""
        return "regression" if self.kind == "scores" else None

    def examples(self, data: str | Path, split: str) -> list[RelatedTexts]:
        """Reads a table, or a data set of the Hub; of bare texts all splits but train have scores.

        A record whose score or label is missing has the answer None.
        """
        records = read_split(data, split, header=self.header)
        return [self._example(record, self._kind_of(split)) for record in records]

    def texts(self, example: RelatedTexts) -> list[str]:
        """All of them."""
        return list(example.texts)

    def encode(self, examples: Sequence[RelatedTexts], tokenizer: Tokenizer) -> EncodedRows:
        """One row of each different text; a place for each token whose state counts."""
        number: dict[tuple[str, str], int] = {}
        of_examples = [
            [number.setdefault(pair, len(number)) for pair in self._with_prompts(example)]
            for example in examples
        ]
        rows = encode_sequences(tokenizer, [p + t for p, t in number], None, self.max_length)
        ones = np.ones_like(rows.lengths)
        places, counts = whole_rows(rows.lengths, "mean" if self.is_sparse else self.pooling)
        flat = concatenated(of_examples)
        sizes = np.array([len(each) for each in of_examples], dtype=np.int64)
        example = np.repeat(np.arange(len(examples)), sizes)
        first_example = np.zeros(len(rows.lengths), dtype=np.int64)
        first_example[flat[::-1]] = example[::-1]
        tokens = np.zeros(len(examples), dtype=np.int64)
        np.add.at(tokens, example, rows.num_tokens[flat])
        truncated = np.zeros(len(examples), dtype=np.bool_)
        np.logical_or.at(truncated, example, rows.truncated[flat])
        return EncodedRows(
            input_ids=rows.input_ids,
            lengths=rows.lengths,
            first_lengths=rows.first_lengths,
            places=places,
            place_counts=counts,
            labels=ones,
            labels_per_item=ones,
            rows_per_item=ones,
            example=first_example,
            num_tokens=tokens,
            truncated=truncated,
            notes={_TEXTS: flat, _COUNTS: sizes, _VALUES: _values(examples).view(np.int64)},
        )

    def step_texts(self, rows: EncodedRows, examples: IntArray) -> "tuple[IntArray, Groups]":
        """The rows of these examples' texts, and how they belong together; see `CoupledTask`."""
        from bert_core.tasks.contrastive import Groups

        flat, counts = rows.notes[_TEXTS], rows.notes[_COUNTS]
        firsts = np.cumsum(counts) - counts
        sizes = counts[examples]
        some = flat[ragged_arange(firsts[examples], sizes)]
        texts, number = np.unique(some, return_inverse=True)
        # Bare texts are trained on, and measured by scores of two.
        kind = "scores" if self.kind == "texts" and (sizes > 1).all() else self.kind
        if kind == "texts":  # each is read twice, with other dropout; the same text is no other
            pairs = np.arange(len(texts))[:, None] + [0, len(texts)]
            return np.concatenate([texts, texts]), Groups.of(kind, list(pairs))
        values = rows.notes[_VALUES].view(np.float64)[examples]
        return texts, Groups.of(kind, np.split(number, np.cumsum(sizes)[:-1]), values)

    def step_loss(self, vectors: "Tensor", groups: "Groups") -> "tuple[Tensor, Tensor]":
        """See `contrastive_loss`, and of sparse vectors `sparse_loss`."""
        from bert_core.tasks.contrastive import contrastive_loss, sparse_loss

        if self.is_sparse:
            shares = {"of_queries": self.query_flops, "of_passages": self.passage_flops}
            return sparse_loss(vectors, groups, scale=self.loss_scale, **shares)
        sizes = self.matryoshka
        return contrastive_loss(vectors, groups, scale=self.loss_scale, sizes=sizes)

    def loss(self, outputs: "Tensor", batch: TaskBatch) -> "tuple[Tensor, Tensor]":
        """There is none of a part of a step."""
        raise NotImplementedError("the loss of vectors is that of a step, step_loss")

    def decode(
        self, outputs: FloatArray, rows: EncodedRows, examples: Sequence[RelatedTexts]
    ) -> list[dict[str, Any]]:
        """The place of each query's passage among all passages, a cosine, or a neighbour's class.

        - pairs: `rank`, from 1, None beyond `retrieval.DEPTH`; the `value` of its cosine; what
          passage is `nearest`; `METRICS`; of sparse vectors the product, and `SIZES`
        - scores, and texts with scores: the `value` of the cosine
        - labels: the `label` of the nearest other text
        """
        vectors = outputs if self.is_sparse else normalized(outputs)
        counts = rows.notes[_COUNTS]
        firsts = rows.notes[_TEXTS][np.cumsum(counts) - counts]
        if self.kind == "labels":
            return _nearest_labels(vectors, firsts, examples)
        seconds = rows.notes[_TEXTS][np.cumsum(counts) - counts + (counts > 1)]
        values = (vectors[firsts] * vectors[seconds]).sum(axis=1).tolist()
        if self.kind != "pairs":
            return [{"value": value} for value in values]
        places = _ranked(vectors, rows, firsts, seconds, examples)
        found = [{"value": value, **place} for value, place in zip(values, places, strict=True)]
        if self.is_sparse:
            sizes = np.count_nonzero(vectors, axis=1)
            for name, some in zip(SIZES, (firsts, seconds), strict=True):
                for each, size in zip(found, sizes[some].tolist(), strict=True):
                    each[name] = float(size)
        return found

    def metrics(
        self, predictions: Predictions, examples: Sequence[RelatedTexts]
    ) -> dict[str, float]:
        """Means of `METRICS` over queries, correlations with scores, or the accuracy.

        A query with several passages counts as one with one.
        """
        if self.kind == "pairs":
            weights = query_weights(examples)
            return {
                name: float(np.average([found[name] for found in predictions], weights=weights))
                for name in self.pair_metrics
            }
        if self.kind == "labels":
            right = [
                found["label"] == example.answer
                for found, example in zip(predictions, examples, strict=True)
            ]
            return {"accuracy": float(np.mean(right))}
        gold = [float(example.answer or 0) for example in examples]
        found = correlation_metrics(gold, [prediction["value"] for prediction in predictions])
        return {name: found[name] for name in ("spearman", "pearson")}

    @property
    def pair_metrics(self) -> tuple[str, ...]:
        """The metrics of pairs: `METRICS`, and of sparse vectors `SIZES`."""
        return (*METRICS, *SIZES) if self.is_sparse else METRICS

    def _kind_of(self, split: str) -> RelationKind:
        return "scores" if self.kind == "texts" and split != "train" else self.kind

    def _with_prompts(self, example: RelatedTexts) -> list[tuple[str, str]]:
        prompts = [self.query_prompt, *[self.passage_prompt] * (len(example.texts) - 1)]
        return list(zip(prompts, example.texts, strict=True))

    def _example(self, record: Record, kind: RelationKind) -> RelatedTexts:
        where, values = record.where, record.values
        if kind in ("labels", "texts"):
            text = (text_of(record, self.text_column),)
            label = True if kind == "texts" else label_of(value_of(record, self.label_column))
            return RelatedTexts(text, label, where, values)
        pair = text_of(record, self.query_column), text_of(record, self.passage_column)
        if kind == "scores":
            score = number_of(column(record, self.score_column), where)
            return RelatedTexts(pair, score, where, values)
        negatives = [text for name in self.negative_columns for text in _texts(record, name)]
        return RelatedTexts((*pair, *negatives), True, where, values)


def query_weights(examples: Sequence[RelatedTexts]) -> FloatArray:
    """The share of each pair in its query, float64 [N], which has as many pairs as passages."""
    queries = [example.texts[0] for example in examples]
    counts = Counter(queries)
    return np.array([1 / counts[query] for query in queries])


def _texts(record: Record, name: str) -> list[str]:
    """The texts of a column, which may hold a list of them, or none."""
    found = parse_cell(column(record, name))
    given = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(each, str) for each in given):
        raise TaskDataError(f"no text in column {name}", record.where, "fix or remove the record")
    return [stripped for each in given if (stripped := each.strip())]


def _values(examples: Sequence[RelatedTexts]) -> np.ndarray:
    """The score of each example, or the number of its class, float64 [N]."""
    classes: dict[str, int] = {}
    return np.array(
        [
            float(classes.setdefault(each.answer, len(classes)))
            if isinstance(each.answer, str)
            else np.nan
            if each.answer is None
            else float(each.answer)
            for each in examples
        ],
        dtype=np.float64,
    )


def _ranked(
    vectors: FloatArray,
    rows: EncodedRows,
    queries: IntArray,
    passages: IntArray,
    examples: Sequence[RelatedTexts],
) -> list[dict[str, Any]]:
    """The rank and the metrics of each example's passage among those of all examples."""
    counts, texts = rows.notes[_COUNTS], rows.notes[_TEXTS]
    is_passage = np.ones(len(texts), dtype=bool)
    is_passage[np.cumsum(counts) - counts] = False
    every = [text for example in examples for text in example.texts]
    documents, first = np.unique(texts[is_passage], return_index=True)
    names = [every[place] for place in np.flatnonzero(is_passage)[first].tolist()]
    asked, example, query = np.unique(queries, return_index=True, return_inverse=True)
    sought = np.searchsorted(documents, passages)
    relevant: list[dict[int, float]] = [{} for _ in asked]
    for each, document in zip(query.tolist(), sought.tolist(), strict=True):
        relevant[each][document] = 1.0
    # A query that is a passage of another one is no wrong answer of itself, whatever its prompt.
    of_row, of_name = (
        {each: n for n, each in enumerate(some)} for some in (documents.tolist(), names)
    )
    found = nearest(vectors[asked], vectors[documents], DEPTH + 1)[0].tolist()
    for place, (row, number) in enumerate(zip(asked.tolist(), example.tolist(), strict=True)):
        itself = {of_row.get(row), of_name.get(examples[number].texts[0])} - relevant[place].keys()
        found[place] = [each for each in found[place] if each not in itself][:DEPTH]
    metrics = ranking_metrics(found, relevant)
    places = [{document: place for place, document in enumerate(each, 1)} for each in found]
    return [
        {
            "rank": places[each].get(document),
            "nearest": names[found[each][0]],
            **metrics[each],
        }
        for each, document in zip(query.tolist(), sought.tolist(), strict=True)
    ]


def _nearest_labels(
    vectors: FloatArray, rows: IntArray, examples: Sequence[RelatedTexts]
) -> list[dict[str, Any]]:
    """The class of the nearest other text of each example's; None where there is no other."""
    texts, number = np.unique(rows, return_inverse=True)
    labels: dict[int, Any] = {}
    for each, example in zip(number.tolist(), examples, strict=True):
        labels.setdefault(each, example.answer)
    found, scores = nearest(vectors[texts], vectors[texts], 2)
    predictions = []
    for each in number.tolist():
        others = [
            (other, score)
            for other, score in zip(found[each].tolist(), scores[each].tolist(), strict=True)
            if other != each
        ]
        if others:
            other, score = others[0]
            predictions.append({"label": labels[other], "value": score})
        else:
            predictions.append({"label": None, "value": 0.0})
    return predictions

"""Drift metrics: how requests differ from the data that models were trained on.

The figures are for Prometheus: counts of what came, to be rated there, and the training data's
shares beside them. The population stability index, which Prometheus cannot compute in a line, is of
the last `WINDOW` texts.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from bert_core.special_tokens import special_token_ids
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.tag_schemes import OUTSIDE
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.training_statistics import (
    ANSWER,
    LENGTH_EDGES,
    NO_ANSWER,
    count_tokens,
    label_names,
    population_stability_index,
    read_training_statistics,
)
from serving.models import ServedModel

WINDOW = 1000
"""Texts in an index; NaN for fewer, where it would be high by chance."""

_RANGES = [str(float(edge)) for edge in LENGTH_EDGES] + ["+Inf"]
"""Upper ends of the length buckets, as Prometheus writes them."""

_LABELS = ("model", "version")

_Counted = Sequence[tuple[int, int]]
"""The counts of a text: numbers of labels or length buckets, and how often each occurs."""

_ONCE: list[_Counted] = [((number, 1),) for number in range(len(_RANGES))]


class Drift:
    """The drift metrics of all models, in the registry of the application, by version.

    `note` is for one thread, that of the event loop; the others are for any.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._figures: dict[ServedModel, _Figures] = {}
        registry.register(self)

    def add(self, model: ServedModel, *, is_active: bool = True) -> None:
        """Counts the requests to a model from now on; a folder that is loaded twice counts as one.

        Of several without a version, the figures of the last one that `is_active` are shown, not
        those of its canary or shadow. A folder without statistics has the counters alone.
        """
        figures = _Figures(model, is_active=is_active)
        same = (mine for other, mine in self._figures.items() if other.folder == model.folder)
        self._figures[model] = next(
            (figure for figure in same if figure.key == figures.key), figures
        )

    def remove(self, model: ServedModel) -> None:
        """Removes a model; later requests to it are not counted."""
        self._figures.pop(model, None)

    def note(
        self, model: ServedModel, rows: EncodedRows, found: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Counts texts, given as rows, and the answers of the model's task to them.

        None is found by other heads, nor where features are asked for. Of a fine-tuned model such
        texts do not count, unless features are its task: they need not be like those of its task.
        """
        figures = self._figures.get(model)
        of_features = model.task is None or isinstance(model.task, TextEmbedding)
        if figures is not None and (found is not None or of_features):
            figures.note(rows, found or ())

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All figures, for the registry."""
        by_weight = sorted(self._figures.values(), key=lambda figure: figure.is_active)
        figures = list({figure.key: figure for figure in by_weight}.values())
        tokens = CounterMetricFamily(
            "bertline_text_tokens", "Tokens of texts, without [CLS] and [SEP]", labels=_LABELS
        )
        unknown = CounterMetricFamily(
            "bertline_unknown_tokens", "Those of them that the vocabulary lacks", labels=_LABELS
        )
        lengths = HistogramMetricFamily(
            "bertline_text_length", "Tokens of a text, with [CLS] and [SEP]", labels=_LABELS
        )
        labels = CounterMetricFamily(
            "bertline_found_labels",
            "Labels that were found: of texts, words (entities) or questions (answer or none)",
            labels=(*_LABELS, "label"),
        )
        index = GaugeMetricFamily(
            "bertline_population_stability_index",
            f"How far the last {WINDOW} texts are from those of training: over 0.25 is far",
            labels=(*_LABELS, "of"),
        )
        for figure in figures:
            tokens.add_metric(figure.key, figure.num_tokens)
            unknown.add_metric(figure.key, figure.num_unknown)
            buckets = list(zip(_RANGES, accumulate(figure.lengths.total), strict=True))
            lengths.add_metric(figure.key, buckets, figure.sum_of_lengths)
            for name, count in zip(figure.label_names, figure.labels.total, strict=True):
                labels.add_metric((*figure.key, name), count)
            for of, value in figure.indices():
                index.add_metric((*figure.key, of), value)
        yield from (tokens, unknown, lengths, labels, index, *_of_training(figures))


class _Counts:
    """Counts by number, over all texts and over the last `WINDOW`."""

    def __init__(self, size: int) -> None:
        self.total = [0] * size
        self._last = [0] * size
        self._texts: deque[_Counted] = deque()

    def add(self, text: _Counted) -> None:
        for number, count in text:
            self.total[number] += count
            self._last[number] += count
        self._texts.append(text)
        if len(self._texts) > WINDOW:
            for number, count in self._texts.popleft():
                self._last[number] -= count

    def index(self, expected: Sequence[float]) -> float:
        """The population stability index of the last texts; NaN before there are so many."""
        if len(self._texts) < WINDOW:
            return float("nan")
        return population_stability_index(expected, self._last)


class _Figures:
    """The counts of one version of a model, and its training statistics."""

    def __init__(self, model: ServedModel, *, is_active: bool) -> None:
        self.is_active = is_active
        self.key = (model.name, model.version or "")
        self.training = read_training_statistics(model.folder)
        lengths = self.training.lengths if self.training is not None else None
        self.training_lengths = (
            lengths.shares if lengths is not None and lengths.edges == LENGTH_EDGES else None
        )
        self.label_names = label_names(model.task)
        self.num_tokens = self.num_unknown = self.sum_of_lengths = 0
        self.lengths = _Counts(len(_RANGES))
        self.labels = _Counts(len(self.label_names))
        self._task = model.task
        self._number = {name: number for number, name in enumerate(self.label_names)}
        self._special = special_token_ids(model.tokenizer)

    def note(self, rows: EncodedRows, found: Sequence[Mapping[str, Any]]) -> None:
        unknown, known = count_tokens(rows, self._special)
        self.num_unknown += unknown
        self.num_tokens += unknown + known
        for length in rows.num_tokens.tolist():
            self.sum_of_lengths += length
            self.lengths.add(_ONCE[bisect_left(LENGTH_EDGES, length)])
        if self.label_names:
            for text in self._labels_of(rows, found):
                self.labels.add(text)

    def indices(self) -> Iterator[tuple[str, float]]:
        if self.training_lengths is not None:
            yield "length", self.lengths.index(self.training_lengths)
        if self.training is not None and self.training.label_shares is not None:
            shares = [self.training.label_shares.get(name, 0.0) for name in self.label_names]
            yield "labels", self.labels.index(shares)

    def _labels_of(
        self, rows: EncodedRows, found: Sequence[Mapping[str, Any]]
    ) -> Iterator[_Counted]:
        number = self._number
        if isinstance(self._task, Tagging):
            if "pieces" not in rows.notes:  # sub-words were asked for, of which no share is known
                for prediction, count in zip(
                    found, rows.notes["word_counts"].tolist(), strict=True
                ):
                    yield self._of_words(prediction["entities"], count)
        elif not isinstance(self._task, Classification):
            yield from (
                ((number[ANSWER if prediction["text"] else NO_ANSWER], 1),) for prediction in found
            )
        elif self._task.kind == "multiple":  # scores alone do not say from which on a label counts
            yield from (
                [(number[name], 1) for name in prediction["labels"]]
                for prediction in found
                if "labels" in prediction
            )
        else:
            for prediction in found:
                scores = prediction["scores"]
                yield ((number[prediction.get("label") or max(scores, key=scores.get)], 1),)

    def _of_words(self, entities: Sequence[Mapping[str, Any]], num_words: int) -> _Counted:
        found = [
            (self._number[entity["type"]], entity["end_word"] - entity["start_word"])
            for entity in entities
        ]
        return [(self._number[OUTSIDE], num_words - sum(count for _, count in found)), *found]


def _of_training(figures: Sequence[_Figures]) -> Iterator[GaugeMetricFamily]:
    unknown = GaugeMetricFamily(
        "bertline_training_unknown_token_share",
        "Share of the training data's tokens that the vocabulary lacks",
        labels=_LABELS,
    )
    lengths = GaugeMetricFamily(
        "bertline_training_text_length_share",
        "Share of the training data's texts of at most so many tokens",
        labels=(*_LABELS, "le"),
    )
    labels = GaugeMetricFamily(
        "bertline_training_label_share",
        "Share of a label in the training data",
        labels=(*_LABELS, "label"),
    )
    for figure in figures:
        training = figure.training
        if training is None:
            continue
        unknown.add_metric(figure.key, training.unknown_token_share)
        if figure.training_lengths is not None:
            for end, share in zip(_RANGES, accumulate(figure.training_lengths), strict=True):
                lengths.add_metric((*figure.key, end), share)
        for name, share in (training.label_shares or {}).items():
            labels.add_metric((*figure.key, name), share)
    yield from (unknown, lengths, labels)

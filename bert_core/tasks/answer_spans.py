"""Answers among the spans of a context: which are best, by the logits of their ends, and unlike.

Shapes: I questions, R rows (windows), P places, C tokens of all contexts end to end, n tokens of a
window, m maximum tokens of an answer.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.sequences import Windows, max_context
from bert_core.tasks.task import softmax
from bert_core.text.rng import IntArray

_WORD = re.compile(r"[^\W_]+")


class Span(NamedTuple):
    """Characters from `start` up to `end` of a context, and how good an answer they are."""

    score: float
    start: int
    end: int


class Limits(NamedTuple):
    """How many tokens an answer may have, and how many answers are wanted."""

    max_tokens: int
    n_best: int


def candidate_spans(
    outputs: npt.NDArray[np.floating], rows: EncodedRows, num_questions: int, *, limits: Limits
) -> tuple[list[list[Span]], npt.NDArray[np.float64]]:
    """The best spans of each question over all its windows, best first, and null's score, [I].

    `outputs` are start and end logits, [P, 2], at every token of `rows`. An answer may start only
    in the window that shows most context around its first token, so none is found twice. Null's
    score is that of [CLS], the least of the windows'.
    """
    lengths = rows.lengths - rows.first_lengths - 1
    sees_best = max_context(Windows(rows.example, rows.notes["window_start"], lengths))
    first_places = np.cumsum(rows.place_counts) - rows.place_counts
    null_scores = np.full(num_questions, np.inf)
    np.minimum.at(null_scores, rows.example, outputs[first_places].astype(np.float64).sum(1))
    found: list[list[Span]] = [[] for _ in range(num_questions)]
    offsets = rows.notes["offsets"]
    begins = np.cumsum(lengths) - lengths
    places = first_places + rows.first_lengths
    table = np.stack([rows.example, lengths, begins, places, rows.notes["first_token"]], axis=1)
    for question, length, begin, place, token in table.tolist():
        logits = outputs[place : place + length].astype(np.float64)  # [n, 2]
        of_tokens = offsets[token : token + length]
        logits[of_tokens[:, 0] == of_tokens[:, 1]] = -np.inf  # a space alone begins and ends none
        starts = np.where(sees_best[begin : begin + length], logits[:, 0], -np.inf)
        first, last, scores = best_spans(starts, logits[:, 1], limits)
        starts, ends = offsets[token + first, 0], offsets[token + last, 1]
        found[question] += map(Span, scores.tolist(), starts.tolist(), ends.tolist())
    for spans in found:
        spans.sort(key=lambda span: -span.score)
    return found, null_scores


def best_spans(
    starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64], limits: Limits
) -> tuple[IntArray, IntArray, npt.NDArray[np.float64]]:
    """First tokens, last tokens and scores, each [k], of the best spans of a window, best first.

    A span's score is that of its start plus that of its end (section 4.2 of the paper). All spans
    within the limits compete; `starts` and `ends` are [n], minus infinity where nothing may start
    or end. Of equal scores the earlier start comes first, then the shorter span.
    """
    if not len(starts):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    num_tokens, most = len(starts), min(len(starts), limits.max_tokens)
    of_ends = np.full(num_tokens + most - 1, -np.inf)
    of_ends[:num_tokens] = ends
    lasts = np.arange(num_tokens)[:, None] + np.arange(most)  # [n, m]
    scores = (starts[:, None] + of_ends[lasts]).ravel()
    place = -min(limits.n_best, len(scores))
    top = np.flatnonzero(scores >= np.partition(scores, place)[place])
    top = top[np.argsort(-scores[top], kind="stable")][: limits.n_best]
    top = top[np.isfinite(scores[top])]
    first, further = np.divmod(top, most)
    return first, first + further, scores[top]


def distinct_answers(
    context: str, spans: Iterable[Span], n_best: int, *, whole_words: bool = False
) -> list[dict[str, Any]]:
    """The first `n_best` different texts of spans, which come best first.

    `text` is `context[start:end]`. With `whole_words` a span that begins or ends within a word is
    stretched to have all of it.
    """
    answers: dict[str, dict[str, Any]] = {}
    words = [found.span() for found in _WORD.finditer(context)] if whole_words else []
    seen: set[tuple[int, int]] = set()
    for score, start, end in spans:
        if whole_words:
            start, end = stretched(words, start, end)  # noqa: PLW2901 - the same span, longer
        if (start, end) in seen:
            continue
        seen.add((start, end))
        text = context[start:end]
        if text not in answers:
            answers[text] = {"text": text, "start": start, "end": end, "score": score}
            if len(answers) == n_best:
                break
    return list(answers.values())


def stretched(words: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """The characters from `start` up to before `end`, and the words whole that they are part of."""
    if start >= end:
        return start, end
    # The first word that ends behind the first character, the last that begins before the end.
    first = bisect_right(words, start, key=lambda word: word[1])
    last = bisect_left(words, end, key=lambda word: word[0]) - 1
    if first <= last:
        start, end = min(start, words[first][0]), max(end, words[last][1])
    return start, end


def add_probabilities(answers: list[dict[str, Any]]) -> None:
    """Gives each answer its share among these: `probability`, the softmax of their scores."""
    (shares,) = softmax(np.array([[answer["score"] for answer in answers]]))
    for answer, probability in zip(answers, shares.tolist(), strict=True):
        answer["probability"] = probability

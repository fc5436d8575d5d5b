import math
import time

import numpy as np
import pytest

from bert_core.tasks.spans import Limits, Span, add_probabilities, best_spans, distinct_answers


def all_spans(starts, ends, max_tokens):
    """Every span that is allowed: minus its score, its first and its last token."""
    return sorted(
        (-(start + ends[last]), first, last)
        for first, start in enumerate(starts)
        for last in range(first, min(first + max_tokens, len(ends)))
        if math.isfinite(start + ends[last])
    )


@pytest.mark.parametrize("length", [1, 2, 7, 60])
@pytest.mark.parametrize(("max_tokens", "n_best"), [(1, 3), (5, 20), (30, 20), (30, 2000), (4, 1)])
def test_the_best_of_all_spans(length, max_tokens, n_best):
    random = np.random.default_rng(length)
    starts, ends = random.normal(size=(2, length))
    starts[random.random(length) < 0.2] = -np.inf
    first, last, scores = best_spans(starts, ends, Limits(max_tokens, n_best))
    expected = all_spans(starts, ends, max_tokens)[:n_best]
    assert list(zip((-scores).tolist(), first.tolist(), last.tolist(), strict=True)) == expected


def test_an_end_before_its_start_is_no_answer():
    starts, ends = np.array([0.0, 0.0, 9.0]), np.array([9.0, 0.0, 1.0])
    first, last, scores = best_spans(starts, ends, Limits(3, 1))
    assert (first[0], last[0], scores[0]) == (2, 2, 10.0)


def test_equal_scores_have_an_order():
    first, last, _ = best_spans(np.zeros(3), np.zeros(3), Limits(3, 100))
    spans = list(zip(first.tolist(), last.tolist(), strict=True))
    assert spans == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    first, last, _ = best_spans(np.zeros(300), np.zeros(300), Limits(30, 31))
    assert (first[-1], last[-1]) == (1, 1)


def test_nothing_to_choose_from():
    empty = np.empty(0)
    for starts, ends in (
        (empty, empty),
        (np.full(4, -np.inf), np.zeros(4)),
        (np.full(4, np.nan),) * 2,
    ):
        assert [len(each) for each in best_spans(starts, ends, Limits(30, 20))] == [0, 0, 0]


def test_a_text_is_listed_once_with_its_best_score():
    context = "Rome or Paris or Rome"
    spans = [Span(5.0, 0, 4), Span(4.0, 17, 21), Span(3.0, 8, 13), Span(2.0, 5, 7)]
    answers = distinct_answers(context, spans, 2)
    assert answers == [
        {"text": "Rome", "start": 0, "end": 4, "score": 5.0},
        {"text": "Paris", "start": 8, "end": 13, "score": 3.0},
    ]


def test_probabilities_are_a_softmax():
    answers = [{"score": math.log(3) + 800}, {"score": 800.0}]
    add_probabilities(answers)
    assert [answer["probability"] for answer in answers] == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (1, 3, "Rome"),
        (5, 6, "or"),
        (4, 5, " "),
        (0, 4, "Rome"),
        (8, 17, "Paris's état"),
        (9, 9, ""),
    ],
)
def test_an_answer_that_cuts_words_is_stretched(start, end, text):
    context = "Rome or Paris's état"
    (answer,) = distinct_answers(context, [Span(1.0, start, end)], 2, whole_words=True)
    assert answer["text"] == text == context[answer["start"] : answer["end"]]


def test_stretched_answers_are_listed_once():
    spans = [Span(5.0, 0, 3), Span(4.0, 1, 4), Span(3.0, 5, 7)]
    found = distinct_answers("Rome or", spans, 3, whole_words=True)
    assert [(each["text"], each["score"]) for each in found] == [("Rome", 5.0), ("or", 3.0)]


def test_stretching_is_linear():
    context = "東" * 20_000  # one run of letters, each a token
    spans = [Span(0.0, start, start + 1) for start in range(0, 20_000, 2)]
    began = time.thread_time()
    (answer,) = distinct_answers(context, spans, 20, whole_words=True)
    assert (answer["start"], answer["end"]) == (0, 20_000)
    assert time.thread_time() - began < 1  # by single steps 10 s


def test_stretching_goes_to_the_ends_of_words_as_step_by_step():
    choose = np.random.default_rng(0)
    for _ in range(300):
        context = "".join(choose.choice([*"ab1é東_ .'"], size=12))
        start, end = sorted(choose.integers(0, 13, size=2).tolist())
        begin, stop = start, end
        while 0 < begin < stop and context[begin].isalnum() and context[begin - 1].isalnum():
            begin -= 1
        while begin < stop < 12 and context[stop - 1].isalnum() and context[stop].isalnum():
            stop += 1
        (answer,) = distinct_answers(context, [Span(1.0, start, end)], 1, whole_words=True)
        assert (answer["start"], answer["end"]) == (begin, stop), (context, start, end)

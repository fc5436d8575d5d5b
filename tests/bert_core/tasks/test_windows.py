import numpy as np
import pytest

from bert_core.tasks.windows import TooManyTokensError, Windows, cut, max_context, slide


def published_windows(num_tokens, room, stride):
    """The loop of run_squad.py (google-research/bert): start and length of each window."""
    windows, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, room)
        windows.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, stride)
    return windows


def published_max_context(windows, window_index, position):
    """`_check_is_max_context` of run_squad.py."""
    best_score = best_index = None
    for index, (start, length) in enumerate(windows):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_index = score, index
    return window_index == best_index


def some_texts(count=300):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 900, count)
    rooms = random.integers(60, 380, count)
    return lengths, rooms


def test_windows_are_the_published_ones():
    lengths, rooms = some_texts()
    for stride in (1, 37, 128, 500):
        some = slice(None) if stride > 1 else slice(30)
        windows = slide(lengths[some], rooms[some], stride)
        expected = [
            (text, *window)
            for text, (length, room) in enumerate(zip(lengths[some], rooms[some], strict=True))
            for window in published_windows(length, room, stride)
        ]
        assert np.stack([windows.text, windows.starts, windows.lengths], axis=1).tolist() == [
            list(map(int, each)) for each in expected
        ]


def test_a_text_without_tokens_has_one_empty_window():
    windows = slide(np.array([0, 3, 0]), np.array([5, 5, 5]), 2)
    assert windows.text.tolist() == [0, 1, 2]
    assert windows.lengths.tolist() == [0, 3, 0]
    assert max_context(windows).tolist() == [True] * 3


def test_a_text_that_is_cut_keeps_the_other_side():
    lengths, rooms = np.array([5, 0, 9]), np.array([6, 6, 4])
    left, right = cut(lengths, rooms, "left"), cut(lengths, rooms, "right")
    assert left.text.tolist() == right.text.tolist() == [0, 1, 2]
    assert left.lengths.tolist() == right.lengths.tolist() == [5, 0, 4]
    assert left.starts.tolist() == [0, 0, 5] and right.starts.tolist() == [0, 0, 0]


def test_no_texts():
    none = np.empty(0, dtype=np.int64)
    assert len(max_context(slide(none, none, 128))) == 0


def test_the_best_window_is_the_published_one():
    lengths, rooms = some_texts(60)
    # Last windows that are 100 shorter tie but for rounding, 110 shorter lose though more central.
    lengths, rooms = np.append(lengths, [328, 456, 318, 446]), np.append(rooms, [300] * 4)
    windows = slide(lengths, rooms, 128)
    found = max_context(windows)
    expected = []
    for length, room in zip(lengths, rooms, strict=True):
        published = published_windows(length, room, 128)
        expected += [
            published_max_context(published, index, start + within)
            for index, (start, window_length) in enumerate(published)
            for within in range(window_length)
        ]
    assert found.tolist() == expected


def test_every_token_has_one_best_window():
    windows = slide(np.array([1000, 20, 384]), np.array([320, 320, 320]), 128)
    found = max_context(windows)
    assert found.sum() == 1404
    middle = Windows(np.zeros(3, int), np.array([0, 128, 256]), np.array([320, 320, 320]))
    within = max_context(middle).reshape(3, 320)
    assert within[1, 96:224].all(), "where the second window has most on both sides"
    assert within[0, :128].all() and within[2, 192:].all(), "seen by one window alone"


def test_windows_are_counted_before_they_are_made():
    lengths, rooms = some_texts()
    beside = np.arange(len(lengths))
    for stride in (1, 37, 128, 500):
        windows = slide(lengths, rooms, stride)
        num_tokens = int((windows.lengths + beside[windows.text]).sum())
        same = slide(lengths, rooms, stride, beside=beside, max_tokens=num_tokens)
        assert np.array_equal(same.starts, windows.starts)
        with pytest.raises(TooManyTokensError, match=f"{num_tokens} tokens"):
            slide(lengths, rooms, stride, beside=beside, max_tokens=num_tokens - 1)
    with pytest.raises(TooManyTokensError):  # which would be terabytes
        slide(np.array([10**9]), np.array([10]), 1, max_tokens=10**6)

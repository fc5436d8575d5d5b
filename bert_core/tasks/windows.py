"""Texts that are too long -> overlapping windows, and which window sees a token best.

As in the paper's published code (run_squad.py). Shapes: N texts, R windows, W tokens of all windows
end to end.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bert_core.errors import UserError
from bert_core.text.rng import IntArray, ragged_arange

Side = Literal["left", "right"]


class TooManyTokensError(UserError):
    """More tokens are to be read than may be."""


Overflow = Literal["left", "right", "window"]
"""What becomes of a text that is too long for a row: cut on a side, or read in windows."""


@dataclass(frozen=True)
class Windows:
    """Parts of texts: `text` [R] is its number, `starts` [R] its first token, `lengths` [R].

    The windows of a text follow one another; the first starts at token 0.
    """

    text: IntArray
    starts: IntArray
    lengths: IntArray


def slide(
    lengths: IntArray,
    rooms: IntArray,
    stride: int | IntArray,
    *,
    beside: IntArray | int = 0,
    max_tokens: int | None = None,
) -> Windows:
    """Windows over texts of these lengths, [N], of at most `rooms` [N] tokens each, at least 1.

    Each starts `stride` tokens, for all texts or [N], after the one before, or where that one ends
    if it is shorter; the last holds the text's end. A text without tokens has one window.

    Raises `TooManyTokensError`, before any window is made, where they have more than `max_tokens`
    in all with the tokens, one number or [N], that each has `beside` those of its text.
    """
    steps = np.minimum(rooms, stride)
    counts = 1 + np.maximum(-(-(lengths - rooms) // steps), 0)
    if max_tokens is not None:
        # All windows but a text's last are full, and that one ends where the text does.
        of_texts = (counts - 1) * rooms + lengths - (counts - 1) * steps + counts * beside
        if (num_tokens := int(of_texts.sum())) > max_tokens:
            raise TooManyTokensError(
                f"{num_tokens} tokens to be read, in windows that overlap",
                f"at most {max_tokens}",
                "ask for fewer or shorter texts at once, or for windows that overlap less",
            )
    text = np.repeat(np.arange(len(lengths)), counts)
    starts = ragged_arange(np.zeros_like(counts), counts) * steps[text]
    return Windows(text, starts, np.minimum(rooms[text], lengths[text] - starts))


def cut(lengths: IntArray, rooms: IntArray, side: Side) -> Windows:
    """One window for each text of these lengths, [N]: what is left when it is cut on a side."""
    kept = np.minimum(lengths, rooms)
    starts = lengths - kept if side == "left" else np.zeros_like(kept)
    return Windows(np.arange(len(lengths)), starts, kept)


def max_context(windows: Windows) -> npt.NDArray[np.bool_]:
    """Whether a window is the one that sees a token with most context on both sides, [W].

    Each token of a text has exactly one such window: that with the largest minimum of tokens to
    its left and right, plus a hundredth of the window's length, and of equals the first.
    """
    starts, lengths = windows.starts, windows.lengths
    within = ragged_arange(np.zeros_like(lengths), lengths)
    window = np.repeat(np.arange(len(lengths)), lengths)
    of_window = lengths[window]
    # In floating point, as published, so that ties fall the same way.
    score = np.minimum(within, of_window - 1 - within) + 0.01 * of_window
    sizes = np.zeros(int(windows.text.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(sizes, windows.text, starts + lengths)
    token = (np.cumsum(sizes) - sizes)[windows.text[window]] + starts[window] + within
    best = np.full(int(sizes.sum()), -1.0)
    np.maximum.at(best, token, score)
    first = np.full(len(best), len(lengths))
    is_best = score == best[token]
    np.minimum.at(first, token[is_best], window[is_best])
    return first[token] == window

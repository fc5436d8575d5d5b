import gzip
import json
import lzma
from dataclasses import replace

import pytest

from bert_core.tasks.question_answering import QuestionAnswering
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
        (squad(record(question="half \ud83d")), "surrogate pair in question: .*question q1"),
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
    content = squad(*(record(id=each, answers=[]) for each in ids))
    content["data"][0]["title"] = None
    found = read_squad(write(content))
    assert [each.id for each in found] == wanted and {each.title for each in found} == {""}
    found = read_squad_table([row(id=each, title=None) for each in ids])
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

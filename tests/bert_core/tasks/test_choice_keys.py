"""Which choice a key means: every way to write it, and what may mean two choices."""

import pytest

from bert_core.tasks.choice_keys import answers_of, key_of, listed_choices
from bert_core.tasks.tables import TaskDataError

TEXTS = ("cat", "dog", "fox", "hen")
NUMBERED = ("1", "2", "3", "4")


def read(values, texts=TEXTS, **options):
    """The answers of a file of these values, each beside the same texts."""
    given = {"names": (), "names_are_numbers": False, "first_number": None, **options}
    others = [key_of(value, texts, "other") for value in given.pop("others", ())]
    keys = [key_of(value, texts, f"line {line}") for line, value in enumerate(values, start=1)]
    return answers_of(keys, others=lambda: others, **given)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 3], [0, 1, 3]),
        (["0", "3"], [0, 3]),
        ([1, 4], [0, 3]),
        (["1 ", " 4"], [0, 3]),
        ([4.0, 1.0, 2.0], [3, 0, 1]),
        (["4.0", "01"], [3, 0]),
        ([0, None, "", -1, -1.0, float("nan"), "-1", " ", 3], [0, *[None] * 7, 3]),
        (["A", "d"], [0, 3]),
        (["B", "1", "4"], [1, 0, 3]),  # ARC has both
        (["dog", "Hen "], [1, 3]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_one_rule_reads_the_keys_of_a_file(values, expected):
    assert read(values) == expected


@pytest.mark.parametrize("values", [[1, 2, 3], [1], ["2", "3"]])
def test_numbers_that_may_count_from_0_or_1_are_refused_until_it_is_said(values):
    with pytest.raises(TaskDataError, match=r"may be the choice .*line 1.*first_number 0 or 1"):
        read(values)
    numbers = [int(value) for value in values]
    assert read(values, first_number=0) == numbers
    assert read(values, first_number=1) == [number - 1 for number in numbers]
    assert read(values, others=[0]) == numbers, "the other splits say it"
    assert read(values, others=[4, "A", None]) == [number - 1 for number in numbers]


@pytest.mark.parametrize("value", [1, "1", 1.0, " 1"])
def test_the_name_of_a_column_comes_before_its_number(value):
    assert read([value, 2, "3", 4], names=NUMBERED) == [0, 1, 2, 3]
    assert read([value], names=NUMBERED) == [0]
    assert read([value, 4], names=NUMBERED[::-1]) == [3, 0]
    assert read([value, 4], names=NUMBERED, first_number=1) == [0, 3]
    with pytest.raises(TaskDataError, match="name of a column, and the number of another: line 1"):
        read([value], names=NUMBERED, first_number=0)


def test_names_in_another_case_and_order():
    assert read(["b", "A"], names=("B", "A", "C", "D")) == [0, 1]
    assert read(["ending1", "Ending0"], names=("ending0", "ending1", "x", "y")) == [1, 0]
    assert read(["dog"], names=("dog", "cat", "x", "y")) == [0], "before a text too"


def test_numbers_of_which_some_are_names_of_other_columns_are_refused():
    with pytest.raises(TaskDataError, match="first_number"):
        read([0, 1, 2, 3], names=NUMBERED)
    assert read([0, 1, 2, 3], names=NUMBERED, first_number=0) == [0, 1, 2, 3]


def test_without_a_header_the_numbers_of_columns_are_no_names():
    options = {"names": NUMBERED, "names_are_numbers": True}
    assert read([0, 3], **options) == [0, 3]
    assert read([1, 4], **options) == [0, 3]
    with pytest.raises(TaskDataError, match="may be the choice"):
        read([1, 3], **options)
    assert read([1, 3], **options, first_number=0) == [1, 3]


@pytest.mark.parametrize(
    ("values", "texts"),
    [(["4"], ("3", "4", "5", "6")), (["4", "3"], ("3", "4", "5", "6")), (["A"], ("B", "A"))],
)
def test_a_key_that_is_the_text_of_one_choice_and_the_number_of_another_is_refused(values, texts):
    with pytest.raises(TaskDataError, match="may be the choice"):
        read(values, texts)


def test_a_text_that_no_number_can_be_is_a_text():
    assert read(["20", "40"], ("10", "20", "30", "40")) == [1, 3]
    assert read(["4"], ("3", "4", "5", "6"), first_number=1) == [3]


@pytest.mark.parametrize(
    ("values", "options", "match"),
    [
        ([0, 1, 4], {}, r"unknown label '4': numbers from 0 to 4.*line 3"),
        ([0, 3], {"others": [4]}, r"unknown label '0': numbers from 0 to 3.*other splits"),
        ([0, 4], {"first_number": 0}, "unknown label '4'.*line 2"),
        ([0, -2], {}, "unknown label '-2'.*line 2"),
        (["A", "E"], {}, "unknown label 'E': line 2"),
        (["A", "?"], {}, "unknown label '[?]': line 2"),
        ([True, "1.5"], {}, "unknown label 'True': line 1"),
        ([["cat"]], {}, "unknown label .*line 1"),
        (["e"], {"names": ("a", "b")}, "unknown label 'e': line 1 .one of a, b, a letter"),
    ],
)
def test_what_is_no_choice_is_named(values, options, match):
    with pytest.raises(TaskDataError, match=match):
        read(values, **options)


def read_labelled(values, labels, **options):
    """The answers of a file whose records each call their choices so."""
    given = {"names": (), "names_are_numbers": False, "first_number": None, **options}
    texts, names = listed_choices({"text": list(TEXTS), "label": list(labels)})
    others = [key_of(value, texts, "other", names) for value in given.pop("others", ())]
    keys = [key_of(value, texts, f"line {line}", names) for line, value in enumerate(values)]
    return answers_of(keys, others=lambda: others, **given)


def test_what_a_record_calls_its_choices_counts_where_all_keys_are_such_names():
    assert read_labelled([3, "1"], NUMBERED) == [2, 0]
    assert read_labelled([0, 2], NUMBERED) == [0, 2], "0 is none of them, so keys are numbers"
    assert read_labelled([2], NUMBERED, others=[0]) == [2], "another split says it"
    assert read_labelled([2], NUMBERED, others=[4]) == [1]
    assert read_labelled([None, "A"], ("A", "B", "C", "")) == [None, 0]
    assert read_labelled([1, 0], (1, 0, 0, 0)) == [1, 0], "1 and 0 mark the answer"
    assert read_labelled([0, 2], ("A", "A", "B", "C")) == [0, 2], "labels that repeat are no names"
    marked = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    assert listed_choices(marked) == (("a", "b"), ())

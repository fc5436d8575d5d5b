import numpy as np
import pytest

from bert_core.evaluation.outcomes import outcomes
from bert_core.evaluation.slices import (
    by_answer_length,
    by_column,
    by_number,
    by_question_word,
    by_value,
    by_words,
)
from bert_core.tasks.tables import TaskDataError


def test_buckets_have_as_many_examples_each_and_are_named_by_what_is_in_them():
    sizes = np.random.default_rng(0).permutation(100) + 1
    found = by_number("words", sizes)
    assert found.names == ("1 to 25", "26 to 50", "51 to 75", "76 to 100")
    for size, name in zip(sizes.tolist(), found.slice_of, strict=True):
        low, high = map(int, name.split(" to "))
        assert low <= size <= high


def test_equal_numbers_share_a_bucket():
    found = by_number("n", [1] * 90 + [2, 3, 4, 5, 6, 7, 8, 9, 9.5, 10])
    assert found.names == ("1", "2 to 10")
    assert by_number("n", [3, 3, 3]).names == ("3",)


def test_frequent_values_come_first_and_the_rest_is_together():
    values = [f"v{number}" for number in range(40) for _ in range(number + 1)]
    found = by_value("source", values)
    assert len(found.names) == 20
    assert found.names[0] == "v39"
    assert found.names[-1] == "(others)"
    assert found.slice_of.count("(others)") == sum(range(1, 22))
    assert by_value("source", ["b", "a", "b"]).slice_of == ("b", "a", "b")


def test_words_of_all_texts_count(evaluated):
    made = evaluated("two labels", 5)
    found = by_words(outcomes(*made.of))
    lengths = [len(each.first.split()) for each in made.examples]
    assert found == by_number("words", lengths)
    assert by_words(outcomes(*evaluated("numbers", 3).of)).names == ("2",)
    assert by_words(outcomes(*evaluated("choices", 3).of)).names == ("6",)
    made = evaluated("tags", 30)
    lengths = [len(each.words) for each in made.examples]
    assert by_words(outcomes(*made.of)) == by_number("words", lengths)


def test_a_column_of_numbers_is_cut_and_one_of_names_is_not(evaluated):
    results = outcomes(*evaluated("two labels", 60).of)
    assert by_column(results, "source").names == ("s0", "s1", "s2")
    assert by_column(results, "size").names == ("0 to 14", "15 to 29", "30 to 44", "45 to 59")


def test_a_column_that_is_not_there_is_refused_with_the_nearest_name(evaluated):
    results = outcomes(*evaluated("two labels").of)
    with pytest.raises(TaskDataError, match="no column sources, did you mean source: file:0"):
        by_column(results, "sources")
    for number, each in enumerate(results):
        each.columns["id"] = f"x{number}"
    with pytest.raises(TaskDataError, match="another value for every example: column id"):
        by_column(results, "id")


def test_values_of_any_type_have_a_name(evaluated):
    results = outcomes(*evaluated("two labels", 4).of)
    for each, value in zip(results, [None, "", ["a"], True], strict=True):
        each.columns["odd"] = value
    assert by_column(results, "odd").slice_of == ("(empty)", "(empty)", '["a"]', "true")


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("Who won?", "who"),
        ("In what year was it?", "what"),
        ("How many points?", "how many"),
        ("How did it end?", "how"),
        ("Name the river.", "none"),
        ("WHERE?", "where"),
        ("The show is when?", "when"),
    ],
)
def test_what_a_question_asks_for(question, word):
    assert by_question_word([question]).slice_of == (word,)


def test_length_of_the_answer():
    golds = [[], ["1999"], ["a b"], ["a b c", "x"], ["a b c d"], [" ".join("abcdefgh")]]
    found = by_answer_length(golds)
    assert found.slice_of == (
        "no answer",
        "1 word",
        "2 or 3 words",
        "2 or 3 words",
        "4 to 6 words",
        "7 words or more",
    )
    assert by_answer_length([["a b c d e"]]).names == ("4 to 6 words",)

"""How examples are sliced, and the metrics of slices and classes."""

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from bert_core.evaluation.intervals import bootstrap_intervals
from bert_core.evaluation.outcomes import documents, outcomes
from bert_core.evaluation.slices import (
    by_answer_length,
    by_column,
    by_number,
    by_question_word,
    by_value,
    by_words,
    class_metrics,
    slice_metrics,
    usual_slicings,
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


@pytest.mark.parametrize("least", [1_700_000_000, 2**52, 0.123456])
def test_buckets_of_numbers_that_are_close_have_names_of_their_own(evaluated, least):
    step = 1000 * np.spacing(float(least))
    made = evaluated("two labels", 60)
    slicing = by_number("time", [least + step * number for number in range(60)])
    assert len({*slicing.names}) == 4
    assert [slicing.slice_of.count(name) for name in slicing.names] == [15] * 4
    assert [part.count for part in slice_metrics(*made.of, [slicing])] == [15] * 4
    seconds = by_number("time", 1_700_000_000 + 37 * np.arange(60))
    assert seconds.names[0] == "1700000000 to 1700000518"


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
    lengths = [len(example.first.split()) for example in made.examples]
    assert found == by_number("words", lengths)
    assert by_words(outcomes(*evaluated("numbers", 3).of)).names == ("2",)
    assert by_words(outcomes(*evaluated("choices", 3).of)).names == ("6",)
    made = evaluated("tags", 30)
    lengths = [len(example.words) for example in made.examples]
    assert by_words(outcomes(*made.of)) == by_number("words", lengths)


def test_a_column_of_numbers_is_cut_and_one_of_names_is_not(evaluated):
    results = outcomes(*evaluated("two labels", 60).of)
    assert by_column(results, "source").names == ("s0", "s1", "s2")
    assert by_column(results, "size").names == ("0 to 14", "15 to 29", "30 to 44", "45 to 59")


@pytest.mark.parametrize("empty", ["", None, float("nan")])
def test_a_missing_number_is_a_slice_beside_the_buckets(evaluated, empty):
    results = outcomes(*evaluated("two labels", 61).of)
    whole = by_column(results[1:], "size")
    results[0].columns["size"] = empty
    found = by_column(results, "size")
    assert found.names == (*whole.names, "(empty)")
    assert found.slice_of == ("(empty)", *whole.slice_of)


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


def test_a_slice_is_measured_as_if_it_were_all(evaluated):
    made = evaluated("two labels", 100)
    slicing = by_column(outcomes(*made.of), "source")
    found = slice_metrics(*made.of, [slicing], num_resamples=50)
    assert [(each.by, each.name, each.count) for each in found] == [
        ("source", "s0", 34),
        ("source", "s1", 33),
        ("source", "s2", 33),
    ]
    part = made.task, made.predictions[1::3], made.examples[1::3]
    assert found[1].metrics == bootstrap_intervals(*part, num_resamples=50)


def test_every_task_has_slices_of_all_its_examples(evaluated, kind):
    made = evaluated(kind)
    slicings = usual_slicings(*made.of)
    by = {slicing.by for slicing in slicings}
    assert by == {"words"} | ({"question word", "answer length"} if "squad" in kind else set())
    found = slice_metrics(*made.of, slicings, num_resamples=20)
    assert sum(each.count for each in found) == 60 * len(by)
    assert all(made.task.criterion in each.metrics for each in found)


def test_labels_have_the_precision_recall_and_f1_of_scikit_learn(evaluated):
    made = evaluated("five labels", 200)
    found = class_metrics(*made.of, num_resamples=100)
    gold = [example.answer for example in made.examples]
    expected = precision_recall_fscore_support(
        gold, [prediction["label"] for prediction in made.predictions]
    )
    for index, each in enumerate(found):
        assert (each.by, each.name) == ("label", "abcde"[index])
        names = ("precision", "recall", "f1")
        assert [each.metrics[name].value for name in names] == pytest.approx(
            [values[index] for values in expected[:3]]
        )
        assert each.count == expected[3][index]
        assert each.metrics["f1"].low < each.metrics["f1"].value < each.metrics["f1"].high


def test_entities_have_the_f1_of_their_type(evaluated):
    made = evaluated("tags", 100)
    found = class_metrics(*made.of, num_resamples=20)
    metrics = made.task.metrics(made.predictions, made.examples)
    assert {f"f1_{each.name}": each.metrics["f1"].value for each in found} == pytest.approx(
        {name: value for name, value in metrics.items() if name.startswith("f1_")}
    )
    assert {each.by for each in found} == {"entity type"}
    tags = [tag for example in made.examples for tag in example.tags]
    assert {each.name: each.count for each in found} == {
        kind: tags.count(f"B-{kind}") for kind in ("LOC", "PER")
    }


def test_a_label_of_several(evaluated):
    made = evaluated("sets", 100)
    for metric in class_metrics(*made.of, num_resamples=10):
        has = [metric.name in example.answer for example in made.examples]
        hit = [metric.name in found["labels"] for found in made.predictions]
        both = sum(a and b for a, b in zip(has, hit, strict=True))
        assert metric.metrics["recall"].value == both / sum(has)
        assert metric.metrics["precision"].value == both / sum(hit)


def test_tasks_without_classes_have_no_classes_to_measure(evaluated):
    assert class_metrics(*evaluated("squad").of) == class_metrics(*evaluated("numbers").of) == []


def test_documents_are_drawn_whole_in_slices_too(evaluated):
    made = evaluated("squad", 60)
    groups = documents(made.examples)
    slicing = usual_slicings(*made.of)[1]
    found = slice_metrics(*made.of, [slicing], num_resamples=50, groups=groups)
    inside = [index for index, name in enumerate(slicing.slice_of) if name == found[0].name]
    part = [[each[index] for index in inside] for each in (made.predictions, made.examples, groups)]
    assert found[0].metrics == bootstrap_intervals(
        made.task, *part[:2], num_resamples=50, groups=part[2]
    )
    tags = evaluated("tags", 60)
    together = ["one"] * 30 + ["other"] * 30
    few = class_metrics(*tags.of, num_resamples=50, groups=together)
    drawn = class_metrics(*tags.of, num_resamples=50)
    assert few[0].metrics["f1"].value == drawn[0].metrics["f1"].value
    assert few != drawn


def test_slices_below_30_examples_are_small(with_labels):
    made = with_labels(["no"] * 29 + ["yes"] * 31, ["no"] * 60)
    few, enough = class_metrics(*made.of, num_resamples=20)
    assert (few.is_small, enough.is_small) == (True, False)

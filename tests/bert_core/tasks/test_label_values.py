"""What is a label, and what says that there is none."""

import pytest

from bert_core.tasks.classification import Classification
from bert_core.tasks.label_values import (
    as_known,
    class_warnings,
    divided_warnings,
    label_of,
    likeness_warnings,
    not_labels,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("pos", "pos"),
        (" pos\t", "pos"),
        ("\u00a0pos\u3000", "pos"),
        ("\ufeffpos\u200b\u2028", "pos"),
        ("very  good", "very  good"),
        (3, "3"),
        (3.0, "3"),
        (-1.0, "-1"),
        (0.5, "0.5"),
        (True, "True"),
        ("none", "none"),
        ("-", "-"),
        (None, None),
        (NAN, None),
        ("", None),
        (" \u200b", None),
        ("NaN", None),
        ("nan ", None),
        ("<NA>", None),
        ("#N/A", None),
        ("\\N", None),
    ],
)
def test_the_label_of_a_cell(value, label):
    assert label_of(value) == label


@pytest.mark.parametrize(
    ("names", "nothing"),
    [
        (["-1"], ["-1"]),
        (["-1", "pos", "neg"], ["-1"]),
        (["-1", "0", "1", "2"], ["-1"]),
        (["-1", "1", "2", "3"], ["-1"]),
        (["-1.0", "0.0", "2.0"], ["-1.0"]),
        (["-1", "0", "pos"], ["-1"]),
        (["-1", "0", "1"], []),  # sentiment
        (["-1", "1"], []),
        (["-1", "0"], []),
        (["-2", "-1", "0", "1", "2"], []),
        (["-1", "-0.5", "2"], []),
        (["none", "favor", "against"], []),
        (["NA", "null", "None", "N/A", "x"], []),
        (["-", "entailment", "neutral"], ["-"]),
        (["-", "ENTAILMENT", "NOT_ENTAILMENT"], ["-"]),
        (["-1", "-", "Entailment", "contradiction"], ["-", "-1"]),
        (["-", "+"], []),
        (["-"], []),
    ],
)
def test_what_is_no_label_where_labels_are_not_known_yet(names, nothing):
    assert not_labels(set(names)) == set(nothing)
    assert not_labels(set(names), dropped=[names[0]]) >= {names[0]}


def test_what_a_model_does_not_know_and_may_be_nothing_is_nothing():
    names = {"-1", "none", "NULL", "NA", "n/a", "-", "other", "0"}
    assert not_labels(names, known=("0", "1")) == {"-1", "none", "NULL", "NA", "n/a"}
    assert not_labels(names, known=("-1", "0", "1", "none")) == {"NULL", "NA", "n/a"}
    assert not_labels({"None"}, known=("none", "some")) == set(), "a label in another case"
    assert not_labels({"-"}, known=("entailment", "neutral", "contradiction")) == {"-"}
    assert not_labels({"-"}, known=("entailment", "-")) == set()


def test_labels_to_be_dropped_are_none_unless_they_are_asked_for():
    assert not_labels({"x", "?"}, dropped=[" ? "]) == {"?"}
    assert not_labels({"x", "?"}, known=("x", "?"), dropped=["?"]) == set()
    assert not_labels({"-", "neutral"}, dropped=["?"]) == set(), "the default is no more"


def test_a_number_is_the_known_label_however_it_is_written():
    assert [as_known(name, ("0", "1")) for name in ("1.0", "1", "01", "x", "2")] == [
        "1", "1", "1", "x", "2",
    ]  # fmt: skip
    assert as_known("1.0", ("1.0", "1")) == "1.0"
    assert as_known("pos", ("neg", "pos ")) == "pos ", "of a model that was trained on such labels"


def test_labels_that_may_be_meant_to_be_one_are_told():
    labels = ["Pos", "pos", "neg", "very good", "Very  good", "ﬁne", "fine", "é", "e\u0301"]
    warnings = likeness_warnings([*labels, "1", "1.0", "2"])
    assert len(warnings) == 5 and "'Pos', 'pos'" in warnings[0]
    assert likeness_warnings(["a", "b", "a b"]) == []


def test_classes_that_may_mean_nothing_are_told_with_a_remedy():
    assert ["drop_labels=None" in each for each in class_warnings(["None", "x"])] == [True]
    assert len(class_warnings(["-1", "NA", "null", "N/A", "0", "nothing"])) == 4


def test_no_agreement_is_known_beside_the_letters_of_entailment():
    assert not_labels({"e", "n", "c", "-"}) == {"-"}
    assert not_labels({"n", "-"}) == set()
    (warning,) = class_warnings(["good", "bad", "-"])
    assert "'-'" in warning and "--options.drop_labels=-" in warning


@pytest.mark.parametrize(
    ("labels", "multiple", "expected"),
    [
        (["x|y", "z"], True, ["x|y"]),
        (["x", "y;x"], True, ["y;x"]),
        (["x", "y", "x y", "x / y"], True, ["x y", "x / y"]),
        (["new york", "and/or", "x"], True, []),
        (["x", "y", "x,y", "y | x"], False, ["x,y", "y | x"]),
        (["x", "y", "x y", "x/y", "a,b", "a|b"], False, []),
    ],
)
def test_labels_that_may_be_several_are_told(labels, multiple, expected):
    found = divided_warnings(labels, multiple=multiple)
    assert found == [each for each in found if ", ".join(map(repr, expected)) in each]
    assert len(found) == bool(expected)
    task = Classification(kind="multiple" if multiple else "single", labels=labels)
    assert task.label_warnings() == found


@pytest.mark.parametrize("labels", [['"x"', '"y"'], ["'x'", "'y'"], ["\u201cx\u201d"]])
def test_labels_in_quotes_are_told(labels):
    (told,) = Classification(labels=labels).label_warnings()
    assert "quotes" in told and labels[0] in told
    assert Classification(labels=[*labels, "z"]).label_warnings() == []
    assert Classification(labels=['"', "''z"]).label_warnings() == []

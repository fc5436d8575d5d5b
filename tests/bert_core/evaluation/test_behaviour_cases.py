import itertools

import numpy as np
import pytest

from bert_core.evaluation.behaviour import change_text, make_cases, negated, with_typos
from bert_core.evaluation.behaviour_suite import (
    Change,
    Invariance,
    MinimumFunctionality,
    PairTemplate,
)
from bert_core.tasks.classification import Text

WORDS = {"name": ["Anna", "John", "Li"], "verb": ["is", "was"]}
DATA = [Text(f"Anna met John {number} times", None, "1") for number in range(9)] + [
    Text("nobody here", None, "0")
]


def check(templates, cases=100):
    return MinimumFunctionality(
        name="a check", kind="minimum functionality", templates=templates, cases=cases, label="1"
    )


def changed(text, second=None, **change):
    found = change_text(Text(text, second, None), Change(**change), WORDS, np.random.default_rng(0))
    return found.first if second is None else (found.first, found.second)


def test_templates_give_every_combination():
    cases = make_cases(check("{name} {verb} {name2}, {name}!"), WORDS, (), 0)
    expected = {
        f"{one} {verb} {other}, {one}!"
        for one, other in itertools.permutations(WORDS["name"], 2)
        for verb in WORDS["verb"]
    }
    assert {case.after.first for case in cases} == expected
    assert len(cases) == len(expected)
    assert all(case.before is None for case in cases)


def test_of_many_combinations_some_are_drawn_by_the_seed():
    few = check(["{name} {verb} here", "{verb} {name}?"], cases=4)
    first = make_cases(few, WORDS, (), 0)
    assert len({case.after.first for case in first}) == 4
    assert sum(case.after.first.endswith("?") for case in first) == 2
    assert first == make_cases(few, WORDS, (), 0)
    assert any(first != make_cases(few, WORDS, (), seed) for seed in range(1, 4))
    # Too many to list.
    slots = " ".join(f"{{word{number}}}" for number in range(5))
    many = make_cases(check(slots, cases=30), {"word": list("abcdefghijkl")}, (), 0)
    assert len({case.after.first for case in many}) == 30
    assert all(len(set(case.after.first.split())) == 5 for case in many)


def test_a_pair_is_filled_with_the_same_words():
    template = PairTemplate(first="{name} asks", second="{name} {verb} asked")
    cases = make_cases(check(template), WORDS, (), 0)
    assert len(cases) == 6
    assert all(case.after.second.startswith(case.after.first.split()[0]) for case in cases)


def test_examples_that_have_nothing_to_change_are_left_out():
    swap = Invariance(name="x", kind="invariance", examples=9, change=Change(swap="name"))
    cases = make_cases(swap, WORDS, DATA, 0)
    assert len(cases) == 9
    assert {case.before.first for case in cases} == {each.first for each in DATA[:9]}
    assert all(case.after.answer == "1" for case in cases)
    assert len(make_cases(swap.model_copy(update={"examples": 4}), WORDS, DATA, 0)) == 4
    assert make_cases(swap, WORDS, DATA[9:], 0) == []


def test_swapped_words_stay_different_and_the_same_throughout():
    first, second = changed("Anna and John and Anna's Annabel", "John, Li", swap="name")
    names = first.replace("'s Annabel", "").split(" and ")
    assert names[0] == names[2] != names[1]
    assert names[0] != "Anna"
    assert names[1] != "John"
    assert second.split(", ")[0] == names[1]
    assert first.endswith("Annabel")


def test_a_typo_exchanges_two_letters_within_a_word():
    random = np.random.default_rng(0)
    for _ in range(50):
        found = with_typos("it was good, all of it", 1, random)
        differs = [index for index in range(22) if found[index] != "it was good, all of it"[index]]
        assert len(differs) == 2
        assert differs[1] == differs[0] + 1
        assert sorted(found) == sorted("it was good, all of it")
        assert found[2] == " "
    assert with_typos("a b 12", 3, random) == "a b 12"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It was good and is.", "It was not good and is."),
        ("It was not good.", "It was good."),
        ("It isn't good.", "It is good."),
        ("We can't.", "We can."),
        ("It cannot fail.", "It can fail."),
        ("Won't it?", "Will it?"),
        ("Was it?", "Was not it?"),
        ("No verb here", "No verb here"),
        ("This island", "This island"),
        ("They could not and would.", "They could and would."),
    ],
)
def test_negation(text, expected):
    assert negated(text) == expected


def test_other_changes():
    assert changed("so.", append="Yes.") == "so. Yes."
    assert changed("so.", prepend="Yes.") == "Yes. so."
    assert changed("a cat, concat cat", replace={"cat": "dog", "a": "one"}) == "one dog, concat dog"
    assert changed("a b", replace={"a": "b", "b": "a"}) == "b a"
    assert changed("The End", case="upper") == "THE END"
    assert changed("The End", case="lower") == "the end"
    assert changed("It is", negate="true") == "It is not"
    assert changed("A", "B", case="lower", side="first") == ("a", "B")
    assert changed("A", "B", case="lower", side="second") == ("A", "b")
    assert changed("A", "B", case="lower") == ("a", "b")


def test_other_checks_change_nothing_of_what_is_drawn():
    one = Invariance(name="one", kind="invariance", examples=5, change=Change(typos=1))
    other = one.model_copy(update={"name": "other"})
    assert make_cases(one, WORDS, DATA, 0) == make_cases(one, WORDS, DATA, 0)
    assert make_cases(one, WORDS, DATA, 0) != make_cases(other, WORDS, DATA, 0)

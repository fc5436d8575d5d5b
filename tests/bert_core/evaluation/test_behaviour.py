"""Behavioural checks: the suite file, the cases, the judgement."""

import itertools
import re

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.evaluation.behaviour import change_text, make_cases, negated, run_suite, with_typos
from bert_core.evaluation.behaviour_suite import (
    Change,
    Invariance,
    MinimumFunctionality,
    PairTemplate,
    read_suite,
)
from bert_core.tasks.classification import Text

SUITE = """\
words:
  name: [Anna, John]
  answer: [yes, no, 1]
checks:
  - name: first
    kind: minimum functionality
    templates: "{name} says {answer}."
    label: 1
  - name: second
    kind: invariance
    examples: 20
    change: {swap: name, side: first}
"""


@pytest.fixture
def suite_of(tmp_path):
    def make(text):
        path = tmp_path / "checks.yaml"
        path.write_text(text)
        return read_suite(path)

    return make


def test_a_suite_is_read(tmp_path, suite_of):
    suite = suite_of(SUITE)
    assert suite.words == {"name": ["Anna", "John"], "answer": ["yes", "no", "1"]}
    first, second = suite.checks
    assert isinstance(first, MinimumFunctionality)
    assert first.label == "1"
    assert isinstance(second, Invariance)
    assert (second.examples, second.change.swap, second.change.side) == (20, "name", "first")
    path = tmp_path / "checks.yaml"
    assert suite.places == [f"{path}:5", f"{path}:9"]
    assert suite_of(SUITE.replace("{name} says", "{name} and {name2} say")).checks


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("templates:", "tempates:", r"unknown key tempates, did you mean templates: .*yaml:7 "),
        ("words:", "word:", r"unknown key word, did you mean words: .*yaml:1 "),
        ("swap: name", "swop: name", r"unknown key swop, did you mean swap: .*yaml:12 "),
        ("invariance", "invariant", r"unknown kind invariant, did you mean invariance: .*yaml:9"),
        ("    kind: invariance\n", "", r"a check without kind: .*yaml:9 \(one of minimum"),
        ("swap: name", "swap: names", r"no words for 'names', did you mean name: .*yaml:9"),
        ("{answer}", "{answers}", r"no words for 'answers', did you mean answer: .*yaml:5"),
        ("examples: 20", "examples: many", r"checks.1.examples: Input should be .*: .*yaml:11"),
        ("examples: 20", "examples: 0", r"examples: .*greater than or equal to 1: .*yaml:11"),
        ("    examples: 20\n", "", r"checks.1: give either templates or examples: .*yaml:9"),
        ("    label: 1\n", "", r"checks.0: give either label or between: .*yaml:5"),
        ("swap: name", "swap: name, typos: 1", r"change: give exactly one of typos, .*yaml:12"),
        ("    label: 1", "    name: again", r"name stands here twice: .*yaml:8"),
        ("[Anna, John]", "[Anna]", r"nothing to swap with: .*yaml:9 \(list more words: name\)"),
        ("[Anna, John]", "[]", r"words.name: List should have at least 1 item"),
        ("[Anna, John]", "Anna", r"words.name: Input should be a valid list: .*yaml:2"),
        ("checks:", "checks: none\nrest:", r"checks: Input should be a valid list: .*yaml:4"),
        ("    change: {swap: name, side: first}", "", r"change: Field required: .*yaml:9"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(suite_of, old, new, message):
    assert old in SUITE
    with pytest.raises(UserError, match=message) as caught:
        suite_of(SUITE.replace(old, new))
    assert "\n" not in str(caught.value)


WORDS = {"name": ["Anna", "John", "Li"], "verb": ["is", "was"]}
TEXTS = [Text(f"Anna met John {number} times", None, "1") for number in range(9)] + [
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
    cases = make_cases(swap, WORDS, TEXTS, 0)
    assert len(cases) == 9
    assert {case.before.first for case in cases} == {text.first for text in TEXTS[:9]}
    assert all(case.after.answer == "1" for case in cases)
    assert len(make_cases(swap.model_copy(update={"examples": 4}), WORDS, TEXTS, 0)) == 4
    assert make_cases(swap, WORDS, TEXTS[9:], 0) == []


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
    assert make_cases(one, WORDS, TEXTS, 0) == make_cases(one, WORDS, TEXTS, 0)
    assert make_cases(one, WORDS, TEXTS, 0) != make_cases(other, WORDS, TEXTS, 0)


GOOD, BAD = ("wonderful", "brilliant", "moving", "loved"), ("dreadful", "dull")
DATA = [Text(f"The play number {number} was moving", None, "1") for number in range(60)]


class Counting:
    """Praise is what has more good words than bad ones; it knows no negation."""

    labels = ("0", "1")

    def __init__(self, *, dislikes=""):
        self.dislikes = dislikes
        self.calls = []

    def score(self, text):
        words = re.findall(r"\w+", text.lower())
        points = sum(word in GOOD for word in words) - sum(word in BAD for word in words)
        points -= 2 * (self.dislikes in text if self.dislikes else 0)
        return min(max(0.5 + points / 8 + 0.01, 0), 1)

    def __call__(self, texts):
        self.calls.append(texts)
        scores = [self.score(f"{text.first} {text.second or ''}") for text in texts]
        return [
            {"label": "1" if score > 0.5 else "0", "scores": {"0": 1 - score, "1": score}}
            for score in scores
        ]


@pytest.fixture
def documented(repository, suite_of):
    """The suite in the documentation."""
    page = (repository / "docs" / "behavioural_checks.md").read_text(encoding="utf-8")
    return suite_of(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])


def test_the_documented_suite_finds_what_a_word_counter_cannot(documented):
    predict = Counting()
    found = {
        each.name: each for each in run_suite(documented, predict, DATA, labels=predict.labels)
    }
    assert len(predict.calls) == 1
    texts = [(call.first, call.second) for call in predict.calls[0]]
    assert len(set(texts)) == len(texts)
    assert {name: each.num_cases for name, each in found.items()} == {
        "plain praise": 3 * 3 + 4 * 3 * 3,
        "negated praise": 9,
        "who wrote it does not matter": 40,
        "typos": 50,
        "more praise is no worse": 50,
    }
    assert found["plain praise"].num_failures == 0
    assert found["negated praise"].failure_rate == 1
    assert found["who wrote it does not matter"].num_failures == 0
    assert found["more praise is no worse"].num_failures == 0
    # A typo in "moving" takes the only good word away, and the score with it, but not by 0.3.
    assert found["typos"].num_failures == 0
    failure = found["negated praise"].failures[0]
    assert failure.expected == "0"
    assert failure.found.startswith("1 (0.6")


def test_a_model_that_minds_names_is_found_out(documented):
    predict = Counting(dislikes="Mehmet")
    found = {e.name: e for e in run_suite(documented, predict, DATA, labels=predict.labels)}
    unfair = found["who wrote it does not matter"]
    assert 0 < unfair.num_failures < unfair.num_cases
    assert len(unfair.failures) == 5
    for failure in unfair.failures:
        minded = ["Mehmet" in text.first for text in (failure.case.before, failure.case.after)]
        assert minded[0] != minded[1]


INVARIANT = """\
checks:
  - {name: a, kind: invariance, examples: 1, change: {append: %s}, tolerance: %s}
"""


@pytest.mark.parametrize(
    ("added", "tolerance", "fails"),
    [("dull", 0.2, False), ("dull", 0.1, True), ("dull dull", 0.9, True), ("so", 0, False)],
)
def test_with_a_tolerance_scores_may_not_move_either(suite_of, added, tolerance, fails):
    # "dull" takes 1/8 from the score, two of them the label too.
    suite = suite_of(INVARIANT % (added, tolerance))
    (found,) = run_suite(suite, Counting(), DATA, labels=Counting.labels)
    assert found.num_failures == fails


@pytest.mark.parametrize(
    ("added", "moves", "by", "fails"),
    [
        ("dull", "up", 0, True),
        ("dull", "down", 0.1, False),
        ("dull", "down", 0.2, True),
        ("so", "up", 0, False),
        ("so", "up", 0.01, True),
    ],
)
def test_direction(suite_of, added, moves, by, fails):
    suite = suite_of(
        "checks:\n  - {name: a, kind: direction, examples: 3, label: 1, "
        f"change: {{append: {added}}}, moves: {moves}, by: {by}}}\n"
    )
    (found,) = run_suite(suite, Counting(), DATA, labels=Counting.labels)
    assert found.num_failures == 3 * fails


def test_the_worst_failures_are_shown(suite_of):
    suite = suite_of(
        "words: {n: ['', so so, so, moving, moving wonderful, moving wonderful loved]}\n"
        "checks:\n  - {name: a, kind: minimum functionality, templates: 'x {n}', label: 0}\n"
    )
    found = run_suite(suite, Counting(), (), labels=Counting.labels)
    shown = [failure.case.after.first for failure in found[0].failures]
    assert shown[:3] == ["x moving wonderful loved", "x moving wonderful", "x moving"]
    assert (len(shown), found[0].num_failures) == (5, 6)


def numbers(texts):
    return [{"value": float(len(text.first) + len(text.second or ""))} for text in texts]


def test_numbers_lie_between_and_move(suite_of):
    suite = suite_of(
        "words: {w: [a, aaa]}\n"
        "checks:\n"
        "  - name: alike\n"
        "    kind: minimum functionality\n"
        "    templates: {first: '{w}', second: '{w}'}\n"
        "    between: [1, 5]\n"
        "  - {name: same, kind: invariance, templates: '{w}', change: {append: b}, tolerance: 2}\n"
        "  - {name: up, kind: direction, templates: '{w}', change: {append: b}, moves: up, by: 3}\n"
    )
    alike, same, up = run_suite(suite, numbers, (), labels=())
    assert (alike.num_cases, alike.num_failures) == (2, 1)
    assert (alike.failures[0].expected, alike.failures[0].found) == ("1 to 5", "6.000")
    assert same.num_failures == 0
    assert up.failures[0].found == "1.000 → 3.000"


def test_several_labels_have_to_be_the_same_ones(suite_of):
    def predict(texts):
        return [
            {
                "labels": [name for name in "ab" if name in text.first],
                "scores": {name: float(name in text.first) for name in "ab"},
            }
            for text in texts
        ]

    suite = suite_of(
        "checks:\n"
        "  - {name: has, kind: minimum functionality, templates: [xa, xb, xab], label: a}\n"
        "  - {name: same, kind: invariance, templates: [xa, xb], change: {append: a}}\n"
    )
    has, same = run_suite(suite, predict, (), labels=("a", "b"))
    assert [failure.case.after.first for failure in has.failures] == ["xb"]
    assert [failure.case.after.first for failure in same.failures] == ["xb a"]
    assert same.failures[0].found == "b (1.000) → a (1.000), b (1.000)"


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("kind: minimum functionality, templates: x, label: ye", ("no", "yes"), "did you mean yes"),
        ("kind: minimum functionality, templates: x, label: a", (), "the model gives a number"),
        ("kind: minimum functionality, templates: x, between: [0, 1]", ("a",), "give label"),
        ("kind: direction, templates: x, change: {typos: 1}, moves: up", ("a",), "whose score"),
        ("kind: invariance, templates: x, change: {append: x}", (), "give tolerance"),
        ("kind: invariance, templates: x, change: {negate: true}", ("a",), "no case comes"),
        ("kind: invariance, examples: 3, change: {append: x}", ("a",), "no case comes"),
    ],
)
def test_a_check_that_does_not_suit_the_model_is_refused(suite_of, text, labels, message):
    suite = suite_of(f"checks:\n\n  - {{name: a, {text}}}\n")
    with pytest.raises(UserError, match=message) as caught:
        run_suite(suite, numbers, (), labels=labels)
    assert "checks.yaml:3" in str(caught.value)

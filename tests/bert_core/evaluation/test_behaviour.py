import re

import pytest

from bert_core.errors import UserError
from bert_core.evaluation.behaviour import markdown_results, run_suite
from bert_core.evaluation.behaviour_suite import read_suite
from bert_core.tasks.classification import Text

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
        scores = [self.score(f"{each.first} {each.second or ''}") for each in texts]
        return [
            {"label": "1" if score > 0.5 else "0", "scores": {"0": 1 - score, "1": score}}
            for score in scores
        ]


@pytest.fixture
def suite_of(tmp_path):
    def make(text):
        path = tmp_path / "checks.yaml"
        path.write_text(text)
        return read_suite(path)

    return make


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
    texts = [(each.first, each.second) for each in predict.calls[0]]
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
    for each in unfair.failures:
        minded = ["Mehmet" in text.first for text in (each.case.before, each.case.after)]
        assert minded[0] != minded[1]
    text = markdown_results(list(found.values()))
    assert f"| who wrote it does not matter | invariance | 40 | {unfair.num_failures} (" in text
    assert "**who wrote it does not matter**" in text
    assert "expected no change, found" in text


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
        "words: {n: ['', moving, moving wonderful, moving wonderful loved]}\n"
        "checks:\n  - {name: a, kind: minimum functionality, templates: 'x {n}', label: 0}\n"
    )
    found = run_suite(suite, Counting(), (), labels=Counting.labels, num_shown=2)
    shown = [each.case.after.first for each in found[0].failures]
    assert shown == ["x moving wonderful loved", "x moving wonderful"]
    assert found[0].num_failures == 4


def numbers(texts):
    return [{"value": float(len(each.first) + len(each.second or ""))} for each in texts]


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
                "labels": [name for name in "ab" if name in each.first],
                "scores": {name: float(name in each.first) for name in "ab"},
            }
            for each in texts
        ]

    suite = suite_of(
        "checks:\n"
        "  - {name: has, kind: minimum functionality, templates: [xa, xb, xab], label: a}\n"
        "  - {name: same, kind: invariance, templates: [xa, xb], change: {append: a}}\n"
    )
    has, same = run_suite(suite, predict, (), labels=("a", "b"))
    assert [each.case.after.first for each in has.failures] == ["xb"]
    assert [each.case.after.first for each in same.failures] == ["xb a"]
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

import pytest

from bert_core.errors import UserError
from bert_core.evaluation.behaviour_suite import Invariance, MinimumFunctionality, read_suite

GOOD = """\
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


def written(tmp_path, text):
    path = tmp_path / "checks.yaml"
    path.write_text(text)
    return path


def test_a_suite_is_read(tmp_path):
    path = written(tmp_path, GOOD)
    suite = read_suite(path)
    assert suite.words == {"name": ["Anna", "John"], "answer": ["yes", "no", "1"]}
    first, second = suite.checks
    assert isinstance(first, MinimumFunctionality)
    assert first.label == "1"
    assert isinstance(second, Invariance)
    assert (second.examples, second.change.swap, second.change.side) == (20, "name", "first")
    assert suite.places == [f"{path}:5", f"{path}:9"]


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
def test_what_is_wrong_is_named_with_its_line(tmp_path, old, new, message):
    assert old in GOOD
    with pytest.raises(UserError, match=message) as caught:
        read_suite(written(tmp_path, GOOD.replace(old, new)))
    assert "\n" not in str(caught.value)


def test_a_number_marks_another_word_of_a_list(tmp_path):
    text = GOOD.replace("{name} says", "{name} and {name2} say")
    assert read_suite(written(tmp_path, text)).checks

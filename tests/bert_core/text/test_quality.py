"""Rules of quality: each drops what it is for, and prose fails none."""

import pytest

from bert_core.errors import UserError
from bert_core.text.quality import QUALITY_RULES, chosen_rules, first_failure

PROSE = "\n".join(
    f"The {name} of the town was known to all who live there, and they have much to say of it."
    " It is not far from the sea; nobody remembers when the first stones were laid."
    for name in ("harbour", "market", "mill")
)
POOR = {
    "gopher_length": "The town and the sea.",
    "gopher_word_length": PROSE.replace(" ", "of"),
    "gopher_symbols": PROSE.replace(" ", " # "),
    "gopher_bullets": "\n".join(f"- {line}" for line in PROSE.split("\n")),
    "gopher_ellipses": PROSE.replace(".\n", "...\n"),
    "gopher_alphabetic": PROSE + " 1 2" * 30,
    "gopher_stop_words": "der die das von und zu " * 30,
    "gopher_repeated_lines": f"{PROSE}\n{PROSE}",
    "gopher_repeated_words": PROSE + " click here" * 30,
    "c4_sentences": PROSE.replace(".", ","),
    "c4_lorem_ipsum": PROSE + " Lorem Ipsum dolor.",
    "c4_curly_bracket": PROSE + " if (x) { y }",
    "c4_javascript": PROSE + "\nPlease enable JavaScript.",
    "fineweb_punctuation": PROSE.replace(".\n", "\n").removesuffix("."),
    "fineweb_repeated_lines": f"{PROSE}\n{PROSE}",
    "fineweb_short_lines": PROSE + "\nHome" * 9,
}


def test_prose_fails_no_rule():
    assert first_failure(PROSE, tuple(QUALITY_RULES)) == -1


@pytest.mark.parametrize("name", QUALITY_RULES)
def test_each_rule_drops_what_it_is_for(name):
    assert first_failure(POOR[name], (name,)) == 0
    assert QUALITY_RULES[name]


@pytest.mark.parametrize(("ngram", "share"), [("aa bb", 0.2), ("aa bb c", 0.18), ("a b c d", 0.16)])
def test_repeated_words_are_measured_by_their_share_of_the_characters(ngram, share):
    """Within other words, at which no n-gram is repeated, around the limit."""
    characters = len(ngram.replace(" ", ""))
    for number in range(2, 40):
        others = [f"word{place:03d}" for place in range(60)]
        for place in range(number):
            others[place] = f"{ngram} {others[place]}"
        total = number * characters + 60 * 7
        expected = 0 if number * characters > share * total else -1
        assert first_failure(" ".join(others), ("gopher_repeated_words",)) == expected


def test_the_first_rule_counts():
    names = ("c4_lorem_ipsum", "c4_curly_bracket")
    assert first_failure("{ lorem ipsum", names) == 0
    assert first_failure("{", names) == 1
    assert first_failure("", ()) == -1


@pytest.mark.parametrize("text", ["", "\n", "x" * 100_000, "… " * 1000, "1\n" * 1000])
def test_any_text_can_be_judged(text):
    for name in QUALITY_RULES:
        assert first_failure(text, (name,)) in (-1, 0)


def test_rules_are_chosen_by_name_or_set_in_a_fixed_order():
    of_gopher = tuple(name for name in QUALITY_RULES if name.startswith("gopher_"))
    assert chosen_rules(["gopher"]) == of_gopher and len(of_gopher) > 5
    assert chosen_rules(["c4_sentences", "gopher_length"]) == ("gopher_length", "c4_sentences")
    assert chosen_rules(["gopher_length", "gopher"]) == of_gopher
    assert chosen_rules([]) == ()
    with pytest.raises(UserError, match=r"did you mean gopher_length"):
        chosen_rules(["gopher_lenght"])

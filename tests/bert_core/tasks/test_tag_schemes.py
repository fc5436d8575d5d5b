"""Tag schemes: the same entities in each, what is invalid, what is lenient as in conlleval."""

import random

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities

from bert_core.tasks.tag_schemes import (
    Tags,
    detect_scheme,
    is_plain,
    look_like_a_scheme,
    respelled,
    split_tag,
)

CASES = {
    "nothing": ([], 3, "O O O", "O O O", "O O O"),
    "one word": ([("PER", 1, 2)], 3, "O I-PER O", "O B-PER O", "O S-PER O"),
    "the whole": (
        [("PER", 0, 3)],
        3,
        "I-PER I-PER I-PER",
        "B-PER I-PER I-PER",
        "B-PER I-PER E-PER",
    ),
    "neighbours of a type": (
        [("LOC", 0, 2), ("LOC", 2, 3), ("LOC", 3, 5)],
        5,
        "I-LOC I-LOC B-LOC B-LOC I-LOC",
        "B-LOC I-LOC B-LOC B-LOC I-LOC",
        "B-LOC E-LOC S-LOC B-LOC E-LOC",
    ),
    "neighbours of two types": (
        [("LOC", 0, 2), ("PER", 2, 4), ("LOC", 4, 5)],
        5,
        "I-LOC I-LOC I-PER I-PER I-LOC",
        "B-LOC I-LOC B-PER I-PER B-LOC",
        "B-LOC E-LOC B-PER E-PER S-LOC",
    ),
    "hyphened type": ([("a-b", 0, 2)], 3, "I-a-b I-a-b O", "B-a-b I-a-b O", "B-a-b E-a-b O"),
}
"""Entities (type, first word, word after the last), words, and their tags in IOB1, IOB2, BIOES."""

SCHEMES = ("iob1", "iob2", "bioes")


def entities_of(tags):
    return [
        (tags.type_names[kind], begin, end)
        for begin, end, kind in zip(*(each.tolist() for each in tags.entities), strict=True)
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_are_the_same_in_every_scheme(case, scheme):
    entities, num_words, *written = CASES[case]
    sequences = dict(zip(SCHEMES, (each.split() for each in written), strict=True))
    tags = Tags.of([sequences[scheme]])
    assert entities_of(tags) == entities
    assert not tags.invalid(scheme).any()
    for other in SCHEMES:
        assert tags.strings(other) == sequences[other]
    assert len(sequences[scheme]) == num_words


@pytest.mark.parametrize(
    ("scheme", "sequence", "invalid"),
    [
        ("iob1", "B-PER I-PER O B-PER I-LOC B-PER B-PER", [0, 3, 5]),
        ("iob1", "I-PER E-PER S-PER", [1, 2]),
        ("iob2", "I-PER I-PER O B-PER I-LOC O I-LOC", [0, 4, 6]),
        ("iob2", "B-PER E-PER S-PER", [1, 2]),
        ("bioes", "B-PER O", [0]),
        ("bioes", "O I-PER E-PER", [1]),
        ("bioes", "B-PER I-PER", [1]),
        ("bioes", "B-PER E-LOC", [0, 1]),
        ("bioes", "B-PER S-PER E-PER", [0, 2]),
        ("bioes", "S-PER I-PER E-PER", [1]),
        ("bioes", "B-PER E-PER E-PER", [2]),
        ("bioes", "B-PER I-PER I-PER E-PER S-PER O B-LOC E-LOC B-LOC E-LOC", []),
    ],
)
def test_what_a_scheme_forbids_is_found(scheme, sequence, invalid):
    assert Tags.of([sequence.split()]).invalid(scheme).nonzero()[0].tolist() == invalid


def test_sentences_do_not_touch():
    tags = Tags.of([["B-PER", "I-PER"], ["I-PER"], ["I-PER", "O"]])
    assert entities_of(tags) == [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]
    assert tags.invalid("iob2").tolist() == [False, False, True, True, False]
    assert tags.strings("iob1") == ["I-PER"] * 4 + ["O"]
    # What begins in one sentence does not end in the next.
    assert Tags.of([["B-PER"], ["E-PER"]]).invalid("bioes").all()


@pytest.mark.parametrize(
    ("scheme", "sequences"),
    [
        ("iob2", ["O O", "O"]),
        ("iob2", ["B-PER I-PER O", "B-LOC"]),
        ("iob1", ["I-PER I-PER O", "I-LOC"]),
        ("iob1", ["I-PER B-PER O", "I-LOC O"]),
        ("iob1", ["I-PER O I-PER O B-LOC"]),
        ("iob2", ["B-PER O B-PER O I-LOC"]),
        ("bioes", ["B-PER E-PER"]),
        ("bioes", ["O S-PER", "O"]),
    ],
)
def test_the_scheme_is_found_out(scheme, sequences):
    assert detect_scheme(Tags.of([each.split() for each in sequences])) == scheme


@pytest.mark.parametrize("tag", ["", "B", "B-", "PER", "o", "O-PER", "X-PER", "b-PER", "-PER"])
def test_a_tag_without_prefix_is_plain_and_an_entity_alone(tag):
    assert is_plain(tag) and not is_plain("O") and not is_plain("B-PER")
    assert split_tag(tag) == ("B", tag)
    if tag:
        assert entities_of(Tags.of([["O", tag, tag]])) == [(tag, 1, 2), (tag, 2, 3)]


def test_a_type_may_look_like_anything():
    assert split_tag("B-B-PER") == ("B", "B-PER")
    assert split_tag("I--") == ("I", "-")
    assert split_tag("S-O") == ("S", "O")


def test_any_sequence_is_read_as_conlleval_reads_it():
    choose = random.Random(4)
    names = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
    sentences = [choose.choices(names, k=choose.randint(1, 12)) for _ in range(500)]
    expected, begin = [], 0
    for sentence in sentences:
        expected += [(kind, begin + a, begin + b + 1) for kind, a, b in get_entities(sentence)]
        begin += len(sentence)
    tags = Tags.of(sentences)
    assert entities_of(tags) == expected
    for scheme in SCHEMES:
        flat = tags.strings(scheme)
        ends = [sum(map(len, sentences[: n + 1])) for n in range(len(sentences))]
        again = Tags.of([flat[end - len(s) : end] for end, s in zip(ends, sentences, strict=True)])
        assert entities_of(again) == expected
        assert not again.invalid(scheme).any()


def test_no_sentences_have_no_entities():
    tags = Tags.of([])
    assert entities_of(tags) == [] and tags.strings("bioes") == []
    assert detect_scheme(tags) == "iob2"


def test_empty_sentences_change_nothing():
    tags = Tags.of([[], ["B-A", "I-A"], [], ["I-A"], []])
    assert [each.tolist() for each in tags.entities] == [[0, 2], [2, 3], [0, 0]]


def test_plain_tags_are_joined_where_it_is_said():
    names = ("O", "PER", "LOC", "B-ORG", "I-ORG")
    codes = np.array([1, 1, 2, 0, 2, 2, 3, 4, 1])

    def entities(joined):
        return entities_of(Tags.from_codes(codes, names, np.array([5, 4]), joined=joined))

    # Two sentences, of five words and of four.
    joined = [("PER", 0, 2), ("LOC", 2, 3), ("LOC", 4, 5), ("LOC", 5, 6), ("ORG", 6, 8)]
    assert entities(True) == [*joined, ("PER", 8, 9)]
    assert entities(False)[:2] == [("PER", 0, 1), ("PER", 1, 2)]
    alone = np.zeros(9, dtype=bool)
    alone[1] = True  # of each word its own
    assert entities(alone)[0] == ("PER", 0, 2)


def test_other_dashes_are_read_and_brackets_named():
    assert respelled(["B–PER", "I–PER", "O"]) == {"B–PER": "B-PER", "I–PER": "I-PER"}
    assert look_like_a_scheme(["(PERSON*", "*", "*)"]) == ["(PERSON*", "*", "*)"]
    assert look_like_a_scheme(["NN", "VB", "("]) == []

"""Entity metrics: equal to conlleval, written down here once more, and to seqeval on all words."""

import random
from collections import Counter

import pytest
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from bert_core.tasks.entity_metrics import entity_metrics


def chunks(sentence):
    """Types, first and last words, after startOfChunk and endOfChunk of conlleval.pl."""
    found, open_chunk = set(), None
    previous = ("O", "")
    for index, tag in enumerate([*sentence, "O"]):
        prefix, _, kind = tag.partition("-")
        before, kind_before = previous
        ends = before in "ES" or (before in "BI" and prefix in "BSO")
        ends = ends or (before != "O" and kind != kind_before)
        starts = prefix in "BS" or (before in "ESO" and prefix in "EI")
        starts = starts or (prefix != "O" and kind != kind_before)
        if ends and open_chunk is not None:
            found.add((*open_chunk, index - 1))
            open_chunk = None
        if starts:
            open_chunk = (kind, index)
        previous = (prefix, kind)
    return found


def conlleval(gold, found):
    """Precision, recall and F1 of all types together ("") and of each."""
    wanted, guessed, right = Counter(), Counter(), Counter()
    for gold_tags, found_tags in zip(gold, found, strict=True):
        gold_chunks, found_chunks = chunks(gold_tags), chunks(found_tags)
        for counter, some in (
            (wanted, gold_chunks),
            (guessed, found_chunks),
            (right, gold_chunks & found_chunks),
        ):
            counter.update([kind for kind, *_ in some] + [""] * len(some))
    scores = {}
    for kind in wanted.keys() | guessed.keys():
        precision = right[kind] / guessed[kind] if guessed[kind] else 0
        recall = right[kind] / wanted[kind] if wanted[kind] else 0
        f1 = 2 * precision * recall / (precision + recall) if right[kind] else 0
        scores[kind] = (precision, recall, f1)
    return scores


def random_tags(choose, lengths, prefixes):
    names = ["O"] * 4 + [
        f"{prefix}-{kind}" for prefix in prefixes for kind in ("PER", "LOC", "X-Y")
    ]
    return [choose.choices(names, k=length) for length in lengths]


def altered(choose, sentences, names):
    return [[choose.choice(names) if choose.random() < 0.15 else t for t in s] for s in sentences]


@pytest.mark.parametrize("prefixes", ["BI", "BBII", "BIES"])
def test_any_tags_are_counted_as_by_conlleval(prefixes):
    choose = random.Random(prefixes)
    gold = random_tags(choose, [choose.randint(1, 15) for _ in range(300)], prefixes)
    found = altered(choose, gold, ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    metrics = entity_metrics(gold, found)
    expected = conlleval(gold, found)
    assert 0.2 < metrics["f1"] < 0.9
    assert [metrics[name] for name in ("precision", "recall", "f1")] == pytest.approx(expected[""])
    assert {name for name in metrics if name.startswith("f1_")} == {"f1_LOC", "f1_PER", "f1_X-Y"}
    for kind in ("PER", "LOC", "X-Y"):
        assert metrics[f"f1_{kind}"] == pytest.approx(expected[kind][2])
    assert metrics["precision"] == pytest.approx(precision_score(gold, found))
    assert metrics["recall"] == pytest.approx(recall_score(gold, found))
    assert metrics["f1"] == pytest.approx(f1_score(gold, found))
    # conlleval counts a word as right when prefix and type are: invalid tags as they are written.
    pairs = [pair for both in zip(gold, found, strict=True) for pair in zip(*both, strict=True)]
    assert metrics["accuracy"] == sum(wanted == guessed for wanted, guessed in pairs) / len(pairs)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(gold, found))


def test_the_accuracy_of_invalid_tags_by_hand():
    gold = [["O", "B-PER", "I-PER"]]
    for invalid in (["O", "I-PER", "I-PER"], ["O", "B-PER", "I-LOC"], ["I-LOC", "B-PER", "I-PER"]):
        assert entity_metrics(gold, [invalid])["accuracy"] == 2 / 3
    assert entity_metrics(gold, [["O", "I-PER", "I-PER"]])["f1"] == 1, "the entity is the same"


def test_a_case_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "B-LOC"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "I-LOC", "B-LOC"]]
    assert entity_metrics(gold, found, ["LOC", "ORG", "PER"]) == pytest.approx(
        {
            "precision": 2 / 4,
            "recall": 2 / 4,
            "f1": 1 / 2,
            "accuracy": 4 / 7,
            "f1_LOC": 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3),
            "f1_ORG": 0,
            "f1_PER": 2 * (1 / 2) * 1 / (1 / 2 + 1),
        }
    )


def test_the_scheme_does_not_matter():
    iob1 = [["I-PER", "B-PER", "O", "I-LOC", "I-LOC"]]
    iob2 = [["B-PER", "B-PER", "O", "B-LOC", "I-LOC"]]
    bioes = [["S-PER", "S-PER", "O", "B-LOC", "E-LOC"]]
    for gold in (iob1, iob2, bioes):
        for found in (iob1, iob2, bioes):
            metrics = entity_metrics(gold, found)
            accuracy = metrics.pop("accuracy")
            assert set(metrics.values()) == {1} and (accuracy == 1) == (gold == found)


def test_what_is_undefined_is_zero():
    nothing, something = [["O", "O"]], [["O", "B-PER"]]
    scores = ("precision", "recall", "f1")
    for gold, found in ((nothing, nothing), (nothing, something), (something, nothing)):
        metrics = entity_metrics(gold, found)
        assert [metrics[name] for name in scores] == [0, 0, 0]
    assert entity_metrics(nothing, nothing, ["PER"]) == {
        "precision": 0, "recall": 0, "f1": 0, "accuracy": 1, "f1_PER": 0,
    }  # fmt: skip

"""Entities of raw text: those of the offline task, at the right characters, however joined."""

import numpy as np
import pytest
import torch

from bert_core.tasks.conll import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.text_tagging import TextTagging
from bert_core.tasks.text_words import word_spans
from bert_core.tasks.windows import TooManyTokensError
from bert_core.tokenizer import SPECIAL_TOKENS, wordpiece_tokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASK = Tagging(labels=LABELS, max_length=16)
TEXT = "(Anna Bach), of Ulm's abc 東!"


@pytest.fixture(scope="module")
def tokenizer():
    """Knows no word but single letters, as sub-words."""
    letters = [*map(chr, range(97, 123)), "'", "(", ")", ",", "!", "東"]
    entries = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]
    return wordpiece_tokenizer({word: i for i, word in enumerate(entries)}, lowercase=True)


def say(rows, text, labels):
    """Outputs that are sure of a label at each character, O where none is given."""
    outputs = np.zeros((len(rows.places), len(LABELS)), dtype=np.float32)
    for row, (start, _) in zip(outputs, rows.notes["pieces"].tolist(), strict=True):
        row[LABELS.index(labels.get(start, "O"))] = 4
    return outputs


def entities(tokenizer, aggregation, labels, text=TEXT):
    """What is found where sub-words, by their characters, have these labels."""
    every = TextTagging(TASK, "none").encode([text], tokenizer)
    outputs = say(every, text, labels)
    asked = TextTagging(TASK, aggregation)
    rows = asked.encode([text], tokenizer)
    if aggregation == "first":
        words = every.notes["words"].tolist()
        outputs = outputs[[words.index(word) for word in rows.notes["words"].tolist()]]
    (found,) = asked.decode(outputs, rows, [text])
    for each in found["entities"]:
        assert each["text"] == text[each["start"] : each["end"]]
    return [(each["type"], each["text"]) for each in found["entities"]]


def test_sub_words_alone(tokenizer):
    labels = {1: "B-PER", 2: "I-PER", 16: "B-LOC"}
    wanted = [("B-PER", "A"), ("I-PER", "n"), ("B-LOC", "U")]
    assert entities(tokenizer, "none", labels) == wanted


def test_sub_words_side_by_side(tokenizer):
    labels = {1: "B-PER", 2: "I-PER", 3: "B-PER", 6: "I-LOC", 7: "I-LOC"}
    wanted = [("PER", "An"), ("PER", "n"), ("LOC", "Ba")]
    assert entities(tokenizer, "simple", labels) == wanted


def test_words_by_their_first_sub_word(tokenizer):
    labels = {1: "B-PER", 2: "B-LOC", 3: "B-LOC", 6: "I-PER", 16: "I-LOC"}
    wanted = [("PER", "Anna Bach"), ("LOC", "Ulm")]
    assert entities(tokenizer, "first", labels) == wanted


def test_words_by_the_mean(tokenizer):
    labels = {1: "B-PER", 2: "B-LOC", 3: "B-LOC", 4: "B-LOC", 16: "B-LOC"}
    # Of Ulm one of three sub-words says LOC, two O.
    assert entities(tokenizer, "average", labels) == [("LOC", "Anna")]


def test_words_by_the_surest(tokenizer):
    asked = TextTagging(TASK, "max")
    rows = asked.encode(["ab cd"], tokenizer)
    outputs = np.zeros((4, len(LABELS)), dtype=np.float32)
    outputs[[0, 1, 2, 3], [1, 3, 0, 2]] = 2, 1, 3, 4
    (found,) = asked.decode(outputs, rows, ["ab cd"])
    (entity,) = found["entities"]
    assert (entity["type"], entity["start_word"], entity["end_word"]) == ("PER", 0, 2)
    surest = torch.tensor(outputs).softmax(-1).amax(-1)
    assert entity["score"] == pytest.approx(float(surest[[0, 3]].mean()))


def test_first_is_what_the_task_finds_in_the_words(tokenizer):
    choose = np.random.default_rng(0)
    texts = [" ".join(choose.choice(list("abcdef'(,"), 30)) for _ in range(5)] + ["", "a", "b " * 9]
    asked = TextTagging(TASK, "first")
    rows = asked.encode(texts, tokenizer)
    sentences = [
        TaggedSentence(words=[text[a:b] for a, b in word_spans(text)], tags=None, scheme="iob2")
        for text in texts
    ]
    of_words = TASK.encode(sentences, tokenizer)
    assert np.array_equal(rows.input_ids, of_words.input_ids)
    assert np.array_equal(rows.places, of_words.places)
    outputs = choose.normal(size=(len(rows.places), len(LABELS))).astype(np.float32)
    for found, wanted in zip(
        asked.decode(outputs, rows, texts), TASK.decode(outputs, of_words, sentences), strict=True
    ):
        spans = [(e["type"], e["start_word"], e["end_word"]) for e in found["entities"]]
        assert spans == [(e["type"], e["start"], e["end"]) for e in wanted["entities"]]
        scores = [each["score"] for each in wanted["entities"]]
        assert [each["score"] for each in found["entities"]] == pytest.approx(scores)


@pytest.mark.parametrize("aggregation", ["none", "simple", "average", "max"])
def test_windows_are_read_as_one_text(tokenizer, aggregation):
    text = "abc " * 30
    asked = TextTagging(TASK, aggregation)
    rows = asked.encode([text], tokenizer)
    assert len(rows.lengths) > 1 and len(rows.places) == 90
    outputs = np.zeros((90, len(LABELS)), dtype=np.float32)
    outputs[:, 1] = 9  # each begins a PER
    (found,) = asked.decode(outputs, rows, [text])
    starts = [each["start"] for each in found["entities"]]
    step = {"none": 90, "simple": 90}.get(aggregation, 30)
    assert starts == sorted(starts) and len(starts) == step


def test_what_is_cut_off_is_outside_and_told(tokenizer):
    text = "abc " * 9
    for side, kept in (("right", range(4)), ("left", range(5, 9))):
        asked = TextTagging(TASK, "average", overflow=side)
        rows = asked.encode([text, "a"], tokenizer)
        outputs = np.zeros((len(rows.places), len(LABELS)), dtype=np.float32)
        outputs[:, 1] = 9
        found, _ = asked.decode(outputs, rows, [text, "a"])
        assert [each["start_word"] for each in found["entities"]] == list(kept)
        assert rows.truncated.tolist() == [True, False]
        assert rows.num_tokens.tolist() == [29, 3]


@pytest.mark.parametrize("texts", [["a b", "c d"], ["a b", ["c", "d"]], ["😀👍" * 100_000]])
def test_words_are_counted_while_they_are_made(tokenizer, texts):
    with pytest.raises(TooManyTokensError, match="at most 3"):
        TextTagging(TASK, max_words=3).encode(texts, tokenizer)
    assert len(TextTagging(TASK, max_words=4).encode(["a b", "c d"], tokenizer).lengths) == 2
    for side in ("left", "right"):
        cut = TextTagging(TASK, overflow=side, max_words=4).encode(["a b c d " * 9], tokenizer)
        assert len(cut.lengths) == 1, "what is to be cut off is no reason to refuse"


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_words_that_are_given_have_the_characters_of_their_text(tokenizer, aggregation):
    words = ["Anna", "Bach", "of", "\u200b", "Ulm"]
    text = " ".join(words)
    asked = TextTagging(TASK, aggregation)
    given = asked.encode([words, [], "abc"], tokenizer)
    outputs = np.random.default_rng(0).normal(size=(len(given.places), len(LABELS)))
    found = asked.decode(outputs.astype(np.float32), given, [words, [], "abc"])
    assert found[1] == {"entities": []}
    assert found[0]["entities"]
    for each in found[0]["entities"]:
        assert each["text"] == text[each["start"] : each["end"]]
        if "start_word" in each:
            assert each["text"] == " ".join(words[each["start_word"] : each["end_word"]])
    split = asked.encode(["Anna Bach of Ulm"], tokenizer)
    assert split.input_ids.tolist() == asked.encode([words], tokenizer).input_ids.tolist()


def plain_entities(tokenizer, task, aggregation, said, text):
    """What a model with plain labels finds where the sub-words at these characters have them."""
    asked = TextTagging(task, aggregation)
    every = TextTagging(task, "none").encode([text], tokenizer)
    rows = asked.encode([text], tokenizer)
    outputs = np.zeros((len(every.places), len(task.labels)), dtype=np.float32)
    for row, (start, _) in zip(outputs, every.notes["pieces"].tolist(), strict=True):
        row[task.labels.index(said.get(start, task.labels[0]))] = 4
    if aggregation == "first":
        words = every.notes["words"].tolist()
        outputs = outputs[[words.index(word) for word in rows.notes["words"].tolist()]]
    (found,) = asked.decode(outputs, rows, [text])
    return [(each["type"], each["text"]) for each in found["entities"]]


@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_neighbours_with_a_plain_type_are_one_entity(tokenizer, aggregation):
    text = "anna bach of ulm, bonn ab"
    said = dict.fromkeys(range(9), "PER") | dict.fromkeys(range(13, 16), "LOC")
    said |= dict.fromkeys(range(18, 22), "LOC") | dict.fromkeys(range(23, 25), "PER")
    names = [("PER", "anna bach"), ("LOC", "ulm"), ("LOC", "bonn"), ("PER", "ab")]
    types = Tagging(labels=("O", "LOC", "PER"), max_length=64)
    assert plain_entities(tokenizer, types, aggregation, said, text) == names
    # The folder may say that they are tags of single words, ...
    words = types.model_copy(update={"scheme": "none"})
    alone = [("PER", "anna"), ("PER", "bach"), *names[1:]]
    assert plain_entities(tokenizer, words, aggregation, said, text) == alone


@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_parts_of_speech_are_of_single_words(tokenizer, aggregation):
    said = dict.fromkeys(range(4, 25), "NN")
    text = "the ab cd"
    parts = Tagging(labels=("DT", "NN"), max_length=64)
    found = [("DT", "the"), ("NN", "ab"), ("NN", "cd")]
    assert plain_entities(tokenizer, parts, aggregation, said, text) == found
    # ... or that labels without O among them are types.
    types = parts.model_copy(update={"scheme": "io"})
    found = [("DT", "the"), ("NN", "ab cd")]
    assert plain_entities(tokenizer, types, aggregation, said, text) == found


@pytest.mark.parametrize("labels", [("O", "LOC", "PER"), ("DT", "NN")])
def test_plain_entities_of_raw_text_are_those_of_the_words(tokenizer, labels):
    task = Tagging(labels=labels, max_length=64)
    text = "ab cd ef gh ab ab cd"
    words = text.split()
    rows = TextTagging(task).encode([text], tokenizer)
    sentences = [TaggedSentence(words=words, tags=None, scheme=None)]
    of_words = task.encode(sentences, tokenizer)
    outputs = np.random.default_rng(1).normal(size=(7, len(labels))).astype(np.float32)
    (found,) = TextTagging(task).decode(outputs, rows, [text])
    (wanted,) = task.decode(outputs, of_words, sentences)
    spans = [(each["type"], each["start_word"], each["end_word"]) for each in found["entities"]]
    assert spans == [(each["type"], each["start"], each["end"]) for each in wanted["entities"]]
    assert (len(spans) < 7) or labels[0] != "O"


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_invisible_characters_are_at_no_edge_of_an_entity(tokenizer, aggregation):
    text = "\ufeffanna\u200b\u2060 \u202ebach\u202c, \ufe0fulm\ufe0f\u200d(ab)"
    task = Tagging(labels=("O", "PER"), max_length=64)
    asked = TextTagging(task, aggregation)
    for example in (text, ["\ufeffanna\u200b", "\u2060", "\ufe0fulm\ufe0f"]):
        rows = asked.encode([example], tokenizer)
        outputs = np.zeros((len(rows.places), 2), dtype=np.float32)
        outputs[:, 1] = 9
        (found,) = asked.decode(outputs, rows, [example])
        whole = example if isinstance(example, str) else " ".join(example)
        assert found["entities"]
        for each in found["entities"]:
            assert each["text"] == whole[each["start"] : each["end"]]
            assert each["text"][0].isprintable() and each["text"][-1].isprintable()
            assert each["text"][0].isascii() and each["text"][-1].isascii()

"""Screened pieces: what each rule drops, examples, languages, evaluation data."""

import json
from collections import Counter

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.text.pieces import (
    DROPPED,
    find_copies,
    pieces_of,
    read_hashes,
    scan_parts,
    take_inventory,
)
from bert_core.text.screening import (
    MOST_EXAMPLES,
    NEAR_DUPLICATES,
    OTHER_LANGUAGE,
    OVERLAP,
    Screening,
    conclude,
    evaluation_texts,
    language_of,
    overlaps,
    require_languages,
    screen_piece,
    write_ngrams,
)
from bert_core.text.sources import CorpusError, evaluation_parts, find_parts
from bert_core.text.word_ngrams import Words

ENGLISH = "The {} of the town is known to all who live there, and they have much to say about it."
GERMAN = "Der {} der Stadt ist allen bekannt, die dort leben, und sie haben viel davon zu erzählen."
SENTENCE = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen."


@pytest.fixture
def screened(tmp_path):
    """Screens documents, in two files; gives the scan records and what was decided."""

    def run(documents, screening, **scanning):
        for number, some in enumerate(np.array_split(documents, 2)):
            lines = "\n".join(json.dumps({"text": str(text)}) for text in some)
            (tmp_path / f"{number}.jsonl").write_text(lines)
        records = []
        for number in range(2):
            parts = list(find_parts([str(tmp_path / f"{number}.jsonl")], "text", Counter()))
            name = f"{number:06d}"
            records.append(
                scan_parts(tmp_path, name, parts, text_column="text", strict=False, **scanning)
            )
        pieces = pieces_of(records)
        hashes = [read_hashes(tmp_path, piece)[0] for piece in pieces]
        bounds = np.cumsum([len(own) for own in hashes])[:-1]
        copies = np.split(find_copies(np.concatenate(hashes)), bounds)
        done = [
            screen_piece(tmp_path, piece, is_copy, screening)
            for piece, is_copy in zip(pieces, copies, strict=True)
        ]
        again = [
            screen_piece(tmp_path, piece, is_copy, screening)
            for piece, is_copy in zip(pieces, copies, strict=True)
        ]
        assert again == done
        decided = conclude(tmp_path, pieces, done, screening)
        for text in (tmp_path / "text").glob("*.txt"):  # as encoding does
            text.unlink()
        repeated = conclude(tmp_path, pieces, done, screening)
        assert np.array_equal(repeated.is_dropped, decided.is_dropped)
        assert repeated.examples == decided.examples
        return records, decided

    return run


def test_documents_in_other_languages_are_dropped_and_counted(screened):
    pytest.importorskip("py3langid")
    words = ("port", "markt", "mill", "wall")
    documents = [text.format(word) for word in words for text in (ENGLISH, GERMAN)]
    _, decided = screened(documents, Screening(languages=("en",)))
    assert decided.is_dropped.tolist() == [False, True] * 4
    assert decided.counts == {OTHER_LANGUAGE: 4} and decided.languages == {"en": 4, "de": 4}
    assert {example.text for example in decided.examples[OTHER_LANGUAGE]} == {*documents[1::2]}


def test_a_language_that_is_not_known_is_refused():
    pytest.importorskip("py3langid")
    require_languages(["en", "de"])
    with pytest.raises(UserError, match="no such language"):
        require_languages(["english"])
    assert language_of("") == language_of("")


def test_the_first_rule_that_drops_a_document_counts(screened):
    poor = ["{ lorem ipsum", "{", "fine", "fine", "lorem ipsum"]
    rules = Screening(quality=("c4_lorem_ipsum", "c4_curly_bracket"))
    _, decided = screened(poor, rules)
    assert decided.is_dropped.tolist() == [True, True, False, False, True]
    assert decided.counts == {"c4_lorem_ipsum": 2, "c4_curly_bracket": 1}


def test_examples_are_few_and_hang_on_hashes_alone(screened):
    documents = [f"{{ {number} }} " + "long " * 100 for number in range(100)]
    _, decided = screened(documents, Screening(quality=("c4_curly_bracket",)))
    examples = decided.examples["c4_curly_bracket"]
    assert len(examples) == MOST_EXAMPLES and all(len(each.text) <= 301 for each in examples)
    assert [each.rank for each in examples] == sorted(each.rank for each in examples)
    numbers = {int(each.text.split()[1]) for each in examples}
    assert max(numbers) >= 50 > min(numbers)


def write_task(folder, **splits):
    folder.mkdir()
    for split, sentences in splits.items():
        rows = [f"1\ta\tb\t{sentence}\t{sentence}" for sentence in sentences]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        (folder / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return evaluation_parts([f"mrpc={folder}"])


def test_documents_with_13_words_of_evaluation_data_are_dropped(screened, tmp_path):
    parts = write_task(
        tmp_path / "mrpc",
        train=["In training thirteen words in a row may stand in any text of ours."],
        dev=[SENTENCE, "Too short."],
    )
    texts = evaluation_texts(parts)
    assert write_ngrams(tmp_path / "excluded.npy", texts) == 2
    words = SENTENCE.lower().split()
    documents = [
        f"Before it. {' '.join(words[:13]).upper()}, and after.",
        f"Before it. {' '.join(words[:12])}, and after.",
        "Too short.",
        " ".join(reversed(words)),
        "In training thirteen words in a row may stand in any text of ours.",
        f"Quoted: “{SENTENCE}”",
    ]
    _, decided = screened(documents, Screening(excluded=tmp_path / "excluded.npy"))
    assert decided.is_dropped.tolist() == [True, False, False, False, False, True]
    assert decided.counts == {OVERLAP: 2}


def test_evaluation_data_has_a_split_to_exclude(tmp_path):
    both = write_task(tmp_path / "both", dev=["a"], test=["b"], dev_mismatched=["c"])
    assert sorted(set(evaluation_texts(both))) == ["a", "b", "c"]
    named = evaluation_parts([f"mrpc={tmp_path / 'both' / 'test.tsv'}"])
    assert set(evaluation_texts(named)) == {"b"}
    with pytest.raises(UserError, match="no file of the dev split"):
        evaluation_texts(write_task(tmp_path / "none", train=["a"]))
    with pytest.raises(UserError, match="no such task"):
        evaluation_parts(["mrcp=data"])
    empty = np.zeros(0, dtype=np.uint64)
    assert overlaps(Words.of(["a", ""]), empty).tolist() == [False, False]


def test_near_duplicates_are_compared_across_pieces_after_the_rules(screened):
    pytest.importorskip("rensa")
    text = " ".join(f"word{number}" for number in range(200))
    documents = [f"{{ {text}", f"{text} more", "...", f"{text} again", "Another one.", "!!"]
    rules = Screening(quality=("c4_curly_bracket",), near_duplicates=0.8)
    records, decided = screened(documents, rules)
    assert decided.is_dropped.tolist() == [True, False, False, True, False, False]
    assert decided.counts == {"c4_curly_bracket": 1, NEAR_DUPLICATES: 1}
    (example,) = decided.examples[NEAR_DUPLICATES]
    # Where they begin to differ, not what they have in common.
    assert documents[3].endswith(example.text[1:]) and example.text.endswith("again")
    assert documents[1].endswith(example.earlier[1:]) and example.earlier.endswith("more")
    assert len(example.text) < 200


def test_dropped_documents_are_in_no_split(screened, tmp_path):
    documents = [f"{'{' if number % 3 else ''} document {number}" for number in range(90)]
    records, decided = screened(documents, Screening(quality=("c4_curly_bracket",)))
    corpus = take_inventory(tmp_path, records, 0.2, 10**6, decided.is_dropped)
    choice = np.concatenate(corpus.choices)
    assert ((choice == DROPPED) == decided.is_dropped).all() and (choice == DROPPED).sum() == 60
    with pytest.raises(CorpusError, match="the rules drop every document"):
        take_inventory(tmp_path, records, 0.2, 10**6, np.ones(90, dtype=bool))


def test_personal_data_is_replaced_before_copies_are_found(screened, tmp_path):
    documents = ["Write to a@example.org.", "Write to b@example.org."]
    records, decided = screened(
        documents, Screening(quality=("c4_curly_bracket",)), scrubbed=["email"]
    )
    assert sum(record.dropped["scrubbed_email"] for record in records) == 2
    corpus = take_inventory(tmp_path, records, 0, 10**6, decided.is_dropped)
    assert corpus.counts["duplicate_documents"] == 1


def test_pieces_of_which_nothing_is_compared(screened, tmp_path):
    pytest.importorskip("rensa")
    write_ngrams(tmp_path / "excluded.npy", [SENTENCE])
    rules = Screening(
        quality=("c4_curly_bracket",), excluded=tmp_path / "excluded.npy", near_duplicates=0.8
    )
    # The second file holds copies, and what the rules drop.
    _, decided = screened(["One text.", "Another.", "One text.", "{"], rules)
    assert decided.is_dropped.tolist() == [False, False, False, True]
    assert decided.counts["near_duplicate_documents"] == 0

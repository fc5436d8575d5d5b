"""Tag schemes: the same entities in each, what is invalid, what is lenient as in conlleval."""

import json
import random

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities

from bert_core.tasks.tables import Record, TaskDataError, read_table
from bert_core.tasks.tag_schemes import (
    Tags,
    detect_scheme,
    is_plain,
    look_like_a_scheme,
    respelled,
    split_tag,
)
from bert_core.tasks.tagged_sentences import (
    TaggedSentence,
    WordColumns,
    in_iob2,
    read_conll,
    read_word_lists,
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
        for begin, end, kind in zip(*(entity.tolist() for entity in tags.entities), strict=True)
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
    assert detect_scheme(Tags.of([sequence.split() for sequence in sequences])) == scheme


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


FIRST_AND_LAST = WordColumns("0", "-1")
CONLL2003 = ("token", "pos", "chunk", "ner")


@pytest.fixture
def conll(tmp_path):
    """Writes a file and reads it."""

    def read(text, columns=FIRST_AND_LAST, name="train.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_conll(path, columns)

    return read


def pairs(sentences):
    return [list(zip(sentence.words, sentence.tags, strict=True)) for sentence in sentences]


def test_documents_sentences_and_their_lines(conll):
    text = (
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
        "\n-DOCSTART- -X- O\nLast NN I-NP O"
    )
    sentences = conll(text)
    assert pairs(sentences) == [
        [("EU", "B-ORG"), ("rejects", "O")],
        [("Peter", "B-PER")],
        [("Last", "O")],
    ]
    assert [sentence.line for sentence in sentences] == [3, 7, 10]
    first, second, third = [sentence.document for sentence in sentences]
    assert first == second != third and None not in (first, third)
    assert sentences[0].where.endswith("train.txt:3")
    assert sentences[0].where_is(1).endswith("train.txt:4")


@pytest.mark.parametrize(
    "text",
    [
        "a X O\nb Y B-PER\n\nc Z O\n",
        "a\tX\tO\nb\tY\tB-PER\n\nc\tZ\tO",
        "a  X   O \n  b Y B-PER\n \t\nc Z O\n\n\n",
        "a X O\r\nb Y B-PER\r\n\r\nc Z O\r\n",
        b"\xef\xbb\xbfa X O\nb Y B-PER\n\nc Z O\n",
    ],
)
def test_spaces_tabs_and_line_ends(conll, text):
    assert pairs(conll(text)) == [[("a", "O"), ("b", "B-PER")], [("c", "O")]]


def test_a_word_may_be_white_space_of_another_kind(conll):
    (sentence,) = conll("a O\n\u00a0 O\n\x85 O\n\u3000\tO\nsix o'clock\tO\n\x0c O\n")
    assert sentence.words == ["a", "\u00a0", "\x85", "\u3000", "six o'clock", "\x0c"]


@pytest.mark.parametrize(
    "columns",
    [
        WordColumns("token", "ner", CONLL2003),
        WordColumns("0", "3", CONLL2003),
        WordColumns("-4", "-1"),
        WordColumns("0", "3"),
        WordColumns("token", "-1", CONLL2003),
    ],
)
def test_columns_by_name_and_by_number(conll, columns):
    assert pairs(conll("EU NNP B-NP B-ORG\n", columns)) == [[("EU", "B-ORG")]]


def test_columns_in_another_order(conll):
    assert pairs(conll("B-ORG EU\n", WordColumns("ner", "token", ("token", "ner")))) == [
        [("EU", "B-ORG")]
    ]
    assert pairs(conll("1 EU _ B-ORG x\n", WordColumns("1", "-2"))) == [[("EU", "B-ORG")]]


def test_one_column_has_no_tags(conll):
    for columns in (FIRST_AND_LAST, WordColumns("token", "ner", CONLL2003)):
        sentences = conll("EU\nrejects\n\nPeter\n", columns)
        assert [sentence.words for sentence in sentences] == [["EU", "rejects"], ["Peter"]]
        assert [sentence.tags for sentence in sentences] == [None, None]


def test_comments_are_left_out_only_where_asked(conll):
    text = "# id 1\nC\tO\n#\tO\n\n#\tO\n\n"
    assert [each.words for each in conll(text.replace("# id 1\n", ""))] == [["C", "#"], ["#"]]
    sentences = conll(text, WordColumns("0", "1", comment="# id"))
    assert [(sentence.words, sentence.line) for sentence in sentences] == [
        (["C", "#"], 2),
        (["#"], 5),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "match"),
    [
        ("a X O\nb O\n", FIRST_AND_LAST, r"2 columns, expected 3: .*train.txt:2 \(fix"),
        ("a X O\n\nb X\tO\n", FIRST_AND_LAST, "2 columns, expected 3: .*train.txt:3"),
        ("a O\n\n-DOCSTART-\n\nb O\nc\n", FIRST_AND_LAST, "1 columns, expected 2.*train.txt:6"),
        ("a\nb O\n", FIRST_AND_LAST, "2 columns, expected 1: .*train.txt:2"),
        ("\na O\n", WordColumns("token", "ner", CONLL2003), "2 columns, expected 4.*train.txt:2"),
        ("a X O\n", WordColumns("0", "3"), "no column 3: .*train.txt:1: there are 3"),
        ("a X O\n", WordColumns("word", "-1"), "no column word: .*train.txt:1: there are 3"),
        (
            "a X X O\n",
            WordColumns("token", "nr", CONLL2003),
            "no column nr, did you mean ner: .*train.txt:1: token, pos, chunk, ner",
        ),
        (b"a O\n\xff O\n", FIRST_AND_LAST, "not UTF-8: .*train.txt"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(conll, text, columns, match):
    with pytest.raises(TaskDataError, match=match):
        conll(text, columns)


def tagged(*sequences):
    """Sentences one after the other from the third line of a file on."""
    line, sentences = 3, []
    for sequence in sequences:
        tags = sequence.split() if sequence else None
        words = ["w"] * len(tags or "ab")
        sentences.append(TaggedSentence(words, tags, file="f.txt", line=line))
        line += len(words) + 1
    return sentences


@pytest.mark.parametrize(
    ("scheme", "sequences"),
    [
        ("iob1", ["I-PER B-PER O", "I-LOC I-LOC"]),
        ("iob2", ["B-PER B-PER O", "B-LOC I-LOC"]),
        ("bioes", ["S-PER S-PER O", "B-LOC E-LOC"]),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_every_scheme_becomes_iob2(scheme, sequences, given):
    first, unknown, second = in_iob2(
        tagged(sequences[0], "", sequences[1]), scheme if given else "auto", refuse=True
    )
    assert (first.tags, second.tags) == (["B-PER", "B-PER", "O"], ["B-LOC", "I-LOC"])
    assert {first.scheme, second.scheme} == {scheme} and unknown.tags is None
    assert first.num_invalid == second.num_invalid == 0
    assert (first.line, unknown.line, second.line) == (3, 7, 10)


def test_invalid_tags_are_counted_or_refused_with_their_line():
    sentences = tagged("B-PER O", "", "O I-PER I-LOC", "O O I-PER")
    counted = in_iob2(sentences, "iob2", refuse=False)
    assert [each.num_invalid for each in counted] == [0, 0, 2, 1]
    assert counted[2].tags == ["O", "B-PER", "B-LOC"]
    with pytest.raises(TaskDataError, match=r"I-PER is not allowed here in IOB2: f.txt:10 \(fix"):
        in_iob2(sentences, "iob2", refuse=True)
    with pytest.raises(TaskDataError, match="B-PER is not allowed here in IOB1: f.txt:3"):
        in_iob2(sentences, "iob1", refuse=True)


def test_what_is_no_tag_is_refused_with_its_line():
    with pytest.raises(TaskDataError, match="'NNP' is not a tag: f.txt:7 .*B-, I-, E- or S-"):
        in_iob2(tagged("O B-X", "O NNP", "NNP"), "auto", refuse=False)
    with pytest.raises(TaskDataError, match="'NNP' is not a tag: f.txt:7"):
        in_iob2(tagged("O O", "O NNP", "NNP"), "iob2", refuse=False)


def test_edges_are_no_part_of_a_tag_and_a_sentence_lacking_one_has_none():
    def read(*tags):
        words = ["w"] * len(tags)
        return in_iob2([TaggedSentence(words, tags), *tagged("B-LOC O")], "auto", refuse=True)[0]

    found = read(" B-PER", "I-PER\u00a0", "\ufeffO\u3000")
    assert (found.tags, found.scheme) == (["B-PER", "I-PER", "O"], "iob2")
    for missing in ("", "\u3000", "nan"):
        assert read("O", missing).tags is None
        (plain,) = in_iob2([TaggedSentence(["a", "b"], ["NN", missing])], "auto", refuse=False)
        assert plain.tags is None


@pytest.mark.parametrize(
    ("sequence", "expected", "count"),
    [
        ("b-PER i-PER o", ["B-PER", "I-PER", "O"], 3),
        ("B_PER I_PER O b_LOC", ["B-PER", "I-PER", "O", "B-LOC"], 3),
        ("PER-B PER-I O LOC-B", ["B-PER", "I-PER", "O", "B-LOC"], 3),
        ("B-PER I-PER o 0", ["B-PER", "I-PER", "O", "O"], 2),
        ("B-PER L-PER O U-LOC", ["B-PER", "I-PER", "O", "B-LOC"], 2),
        ("B-PER M-PER E-PER O W-LOC", ["B-PER", "I-PER", "I-PER", "O", "B-LOC"], 2),
        ("o B:X-Y_Z I:X-Y_Z", ["O", "B-X-Y_Z", "I-X-Y_Z"], 3),
    ],
)
def test_tags_in_other_writing_are_read_and_counted(sequence, expected, count):
    (found,) = in_iob2(tagged(sequence), "auto", refuse=True)
    assert (found.tags, found.num_respelled, found.num_invalid) == (expected, count, 0)


@pytest.mark.parametrize(
    "sequence", ["o PER LOC", "NN-S VB-I NN", "M-Sg M-Pl F-Sg", "E_MAIL o", "0 1"]
)
def test_plain_tags_are_not_taken_for_a_scheme(sequence):
    (found,) = in_iob2(tagged(sequence), "auto", refuse=True)
    assert (found.tags, found.scheme, found.num_respelled) == (sequence.split(), None, 0)


@pytest.mark.parametrize(
    ("scheme", "sequences"),
    [
        ("auto", ["DT NN VBZ", "-LRB- NN-X , O"]),
        ("auto", ["3 0", "0"]),
        ("none", ["B-PER I-PER", "O NN"]),
    ],
)
def test_plain_tags_stay_as_they_are(scheme, sequences):
    first, unknown, second = in_iob2(tagged(sequences[0], "", sequences[1]), scheme, refuse=True)
    assert [first.tags, second.tags] == [sequence.split() for sequence in sequences]
    assert (first.scheme, second.scheme, unknown.tags) == (None, None, None)
    assert first.num_invalid == second.num_invalid == 0


def test_where_all_is_outside_nothing_says_that_tags_are_plain():
    (sentence,) = in_iob2(tagged("O O"), "auto", refuse=True)
    assert sentence.scheme == "iob2"


def test_files_without_tags_stay_as_they_are():
    sentences = tagged("", "")
    assert in_iob2(sentences, "auto", refuse=True) == sentences
    assert in_iob2([], "auto", refuse=True) == []


@pytest.mark.parametrize(
    ("name", "num_sentences", "num_entities", "num_documents"),
    [("train", 14_041, 23_499, 946), ("valid", 3_250, 5_942, 216), ("test", 3_453, 5_648, 231)],
)
def test_conll_2003_has_as_many_sentences_and_entities_as_published(
    shared_data, name, num_sentences, num_entities, num_documents
):
    path = shared_data / "ner" / "conll2003" / f"{name}.txt"
    sentences = in_iob2(
        read_conll(path, WordColumns("token", "ner", CONLL2003)), "auto", refuse=True
    )
    assert len(sentences) == num_sentences
    assert (
        sum(tag.startswith("B-") for sentence in sentences for tag in sentence.tags) == num_entities
    )
    assert len({sentence.document for sentence in sentences}) == num_documents
    assert {sentence.scheme for sentence in sentences} == {"iob2"}


def test_words_in_quotes_of_csv_are_refused(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text('""""\tO\nAda\tB-PER\n')
    with pytest.raises(TaskDataError, match=r"CSV's quotes.*dev.tsv:1 .*QUOTE_NONE"):
        read_conll(path, WordColumns("0", "-1"))
    path.write_text('""""\tO\n"\tO\n')
    assert read_conll(path, WordColumns("0", "-1"))[0].words == ['""""', '"']


def test_comments_of_conll_u_are_left_out_without_a_word(conll):
    text = "# text = a # b\n# id 1\n1\ta\tX\n2\t#\tY\n\n# id 2\n1\tb\tX\n"
    found = conll(text, WordColumns("1", "-1"))
    assert [each.words for each in found] == [["a", "#"], ["b"]]
    assert [each.words for each in conll("# X\na Y\n")] == [["#", "a"]], "a word between spaces"
    assert [each.words for each in conll("# X\na Y\n\nb\tY\n")] == [["#", "a"], ["b"]]


def test_tables_of_lists(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [
        {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"], "doc": "d1"},
        {"words": ["Peter"], "tags": None, "doc": "d1"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for path in (tmp_path / "a.jsonl", tmp_path / "a.parquet"):
        for columns in (WordColumns("words", "tags", document="doc"), WordColumns("0", "1")):
            sentences = read_word_lists(read_table(path), columns)
            assert [sentence.words for sentence in sentences] == [["EU", "rejects"], ["Peter"]]
            assert [sentence.tags for sentence in sentences] == [["B-ORG", "O"], None]
            assert sentences[0].columns == records[0]
            assert path.name in sentences[0].where
            assert sentences[0].where_is(1).endswith("word 2")
            documents = {sentence.document for sentence in sentences}
            assert len(documents) == 1 and (documents == {None}) == (columns.document is None)


def test_a_table_without_tags(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"words": ["EU"]}\n')
    for columns in (FIRST_AND_LAST, WordColumns("words", "tags")):
        (sentence,) = read_word_lists(read_table(tmp_path / "a.jsonl"), columns)
        assert sentence.tags is None


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, "1 tags for 2 words: .*a.jsonl:1"),
        ({"words": [], "tags": []}, "no words in column words: .*a.jsonl:1"),
        ({"words": "a b", "tags": ["O", "O"]}, "no list of strings in column words: .*a.jsonl:1"),
        ({"words": ["a"], "tags": [3.5]}, "no list of strings in column tags: .*a.jsonl:1"),
        ({"words": ["a"], "tags": [True]}, "no list of strings in column tags: .*a.jsonl:1"),
        ({"word": ["a"], "tags": ["O"]}, "no column words, did you mean word: .*a.jsonl:1"),
    ],
)
def test_a_wrong_record_is_refused_with_its_place(tmp_path, record, match):
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(TaskDataError, match=match):
        read_word_lists(read_table(tmp_path / "a.jsonl"), WordColumns("words", "tags"))


def test_tags_that_are_numbers_have_the_names_given_or_are_their_own():
    records = [Record({"tokens": ["a", "b"], "ner_tags": [1, 0]}, "f.jsonl:1")]
    for names, expected in ((("O", "B-PER"), ["B-PER", "O"]), ((), ["1", "0"])):
        columns = WordColumns("tokens", "ner_tags", tag_names=names)
        (sentence,) = read_word_lists(records, columns)
        assert sentence.tags == expected
    with pytest.raises(TaskDataError, match=r"no name for the tag 1: f.jsonl:1 .*has 1, counted"):
        read_word_lists(records, WordColumns("tokens", "ner_tags", tag_names=("O",)))


@pytest.mark.parametrize("names", [(), ("O", "B-PER")])
@pytest.mark.parametrize("tags", [[1, -1], [-100, 1], [1, None], ["O", float("nan")], float("nan")])
def test_a_sentence_of_which_a_word_has_no_tag_has_none(tags, names):
    records = [Record({"tokens": ["a", "b"], "ner_tags": tags}, "f.jsonl:1")]
    (sentence,) = read_word_lists(records, WordColumns("tokens", "ner_tags", tag_names=names))
    assert sentence.tags is None


def test_columns_go_by_the_name_of_the_conll_file_too():
    (sentence,) = read_word_lists(
        [Record({"id": "3", "tokens": ["a"], "pos_tags": ["NN"], "ner_tags": ["O"]}, "x")],
        WordColumns("token", "ner"),
    )
    assert (sentence.words, sentence.tags) == (["a"], ["O"])


KAGGLE = 'Sentence #,Word,POS,Tag\nSentence: 1,London,NNP,B-geo\n,"a, b",X,O\n'


@pytest.mark.parametrize("columns", [FIRST_AND_LAST, WordColumns("Word", "Tag")])
@pytest.mark.parametrize(
    "text",
    [
        KAGGLE + "Sentence: 2,NA,X,O\n",
        KAGGLE.replace("\n,", "\nSentence: 1,") + "Sentence: 2,NA,X,O\n",
        KAGGLE.replace("Sentence #", "sentence_id") + "Sentence: 2,NA,X,O\n,None,X,\n",
    ],
)
def test_csv_with_a_word_in_each_line(tmp_path, columns, text):
    (tmp_path / "train.csv").write_text(text)
    first, second = read_word_lists(read_table(tmp_path / "train.csv"), columns)
    assert (first.words, first.tags) == (["London", "a, b"], ["B-geo", "O"])
    assert first.where.endswith("train.csv:2") and second.where.endswith("train.csv:4")
    assert second.words == (["NA", "None"] if "None" in text else ["NA"])
    assert first.columns["POS"] == ["NNP", "X"]


def test_csv_of_lists_as_pandas_writes_them(tmp_path):
    (tmp_path / "a.csv").write_text("tokens,ner_tags\n\"['EU', 'x']\",\"[1, 0]\"\n")
    named = WordColumns("0", "-1", tag_names=("O", "B-ORG"))
    (sentence,) = read_word_lists(read_table(tmp_path / "a.csv"), named)
    assert (sentence.words, sentence.tags) == (["EU", "x"], ["B-ORG", "O"])
    (tmp_path / "a.csv").write_text("sent_id,word,tag\n1,EU,1\n1,x,0\n")
    (sentence,) = read_word_lists(read_table(tmp_path / "a.csv"), named)
    assert (sentence.words, sentence.tags) == (["EU", "x"], ["B-ORG", "O"])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("word,tag\nEU,O\n", r"no column of sentences.*a.csv:2: word, tag .*sentence_id"),
        ("tokens,tags\n['a' 'b'],['O' 'O']\n", "no column of lists"),
        ("sent_id,word,tag\n1,,O\n", "no text in column word.*a.csv:2"),
        ("sent_id,word,tag\n1,x,7\n", "no name for the tag 7"),
    ],
)
def test_csv_that_has_no_sentences_is_refused(tmp_path, text, match):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(TaskDataError, match=match):
        read_word_lists(read_table(tmp_path / "a.csv"), WordColumns("0", "-1", tag_names=("O",)))


@pytest.mark.parametrize("cell", ["{[]:1}", "[{[]:1}]", r'[""\ud800""]'])
def test_cells_that_python_cannot_make_a_list_of_are_refused(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f'tokens,tags\n"[""a""]","[""O""]"\n"{cell}","[""O""]"\n')
    with pytest.raises(TaskDataError, match="a.csv:3"):
        read_word_lists(read_table(tmp_path / "a.csv"), WordColumns("0", "-1"))

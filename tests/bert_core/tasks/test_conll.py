"""Reading tagged words: every form of file, and every mistake with its line."""

import pytest

from bert_core.tasks.conll import (
    TaggedSentence,
    WordColumns,
    in_iob2,
    read_conll,
)
from bert_core.tasks.tables import TaskDataError

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
    return [list(zip(each.words, each.tags, strict=True)) for each in sentences]


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
    assert [each.line for each in sentences] == [3, 7, 10]
    first, second, third = [each.document for each in sentences]
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
        assert [each.words for each in sentences] == [["EU", "rejects"], ["Peter"]]
        assert [each.tags for each in sentences] == [None, None]


def test_comments_are_left_out_only_where_asked(conll):
    text = "# id 1\nC\tO\n#\tO\n\n#\tO\n\n"
    assert [each.words for each in conll(text.replace("# id 1\n", ""))] == [["C", "#"], ["#"]]
    sentences = conll(text, WordColumns("0", "1", comment="# id"))
    assert [(each.words, each.line) for each in sentences] == [(["C", "#"], 2), (["#"], 5)]


@pytest.mark.parametrize(
    ("text", "columns", "match"),
    [
        ("a X O\nb O\n", FIRST_AND_LAST, r"2 columns where 3 belong: .*train.txt:2 \(mend"),
        ("a X O\n\nb X\tO\n", FIRST_AND_LAST, "2 columns where 3 belong: .*train.txt:3"),
        ("a O\n\n-DOCSTART-\n\nb O\nc\n", FIRST_AND_LAST, "1 columns where 2 .*train.txt:6"),
        ("a\nb O\n", FIRST_AND_LAST, "2 columns where 1 belong: .*train.txt:2"),
        ("\na O\n", WordColumns("token", "ner", CONLL2003), "2 columns where 4 .*train.txt:2"),
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
    with pytest.raises(TaskDataError, match=r"I-PER cannot stand here in IOB2: f.txt:10 \(mend"):
        in_iob2(sentences, "iob2", refuse=True)
    with pytest.raises(TaskDataError, match="B-PER cannot stand here in IOB1: f.txt:3"):
        in_iob2(sentences, "iob1", refuse=True)


def test_what_is_no_tag_is_refused_with_its_line():
    with pytest.raises(TaskDataError, match="'NNP' is no tag: f.txt:7 .*B-, I-, E- or S-"):
        in_iob2(tagged("O B-X", "O NNP", "NNP"), "auto", refuse=False)
    with pytest.raises(TaskDataError, match="'NNP' is no tag: f.txt:7"):
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
    assert [first.tags, second.tags] == [each.split() for each in sequences]
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
    assert sum(tag.startswith("B-") for each in sentences for tag in each.tags) == num_entities
    assert len({each.document for each in sentences}) == num_documents
    assert {each.scheme for each in sentences} == {"iob2"}


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

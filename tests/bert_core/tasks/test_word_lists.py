"""Reading tables of lists: words, and tags by name or by number."""

import json

import pytest

from bert_core.tasks.conll import WordColumns
from bert_core.tasks.tables import Record, TaskDataError, read_table
from bert_core.tasks.word_lists import read_word_lists

FIRST_AND_LAST = WordColumns("0", "-1")


def test_tables_of_lists(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [
        {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"], "doc": "d1"},
        {"words": ["Peter"], "tags": None, "doc": "d1"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for path in (tmp_path / "a.jsonl", tmp_path / "a.parquet"):
        for columns in (WordColumns("words", "tags", document="doc"), WordColumns("0", "1")):
            sentences = read_word_lists(read_table(path), columns)
            assert [each.words for each in sentences] == [["EU", "rejects"], ["Peter"]]
            assert [each.tags for each in sentences] == [["B-ORG", "O"], None]
            assert sentences[0].columns == records[0]
            assert path.name in sentences[0].where
            assert sentences[0].where_is(1).endswith("word 2")
            documents = {each.document for each in sentences}
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
        ("word,tag\nEU,O\n", r"which sentence a word is of.*a.csv:2: word, tag .*sentence_id"),
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

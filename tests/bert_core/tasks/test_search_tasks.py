"""Pairs for search that are made from other data."""

import json

import pytest

from bert_core.tasks.catalog import TASKS
from bert_core.tasks.tables import TaskDataError


def test_questions_of_squad_ask_for_their_paragraphs(tmp_path):
    qas = [
        {"id": str(n), "question": f"question {n} ", "answers": [{"text": "b", "answer_start": 2}]}
        for n in range(3)
    ]
    article = {"title": "T", "paragraphs": [{"context": "a b c", "qas": qas}]}
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": [article]}))
    found = TASKS["squad_search"].examples(tmp_path, "dev")
    assert [each.texts[1] for each in found] == ["a b c"] * 3
    assert found[0].columns["title"] == "T" and found[0].answer is True


def test_names_ask_for_what_they_do():
    task = TASKS["docs_search"].model_copy(update={"max_examples": 100})
    splits = {split: task.examples("docs://numpy", split) for split in ("train", "dev")}
    assert len(splits["train"]) == 100 and len(splits["dev"]) == 25
    for query, summary in (each.texts for each in splits["train"]):
        assert query.startswith("numpy ") and query == query.lower() and "_" not in query
        assert len(summary.split()) >= 4
    modules = [{each.columns["module"] for each in some} for some in splits.values()]
    assert not modules[0] & modules[1], "of a module all is in one split"


def test_plain_text_asks_for_what_stands_below(tmp_path):
    path = tmp_path / "corpus.txt"
    paragraph = "document {} has a paragraph {} of more than eight words in it"
    documents = []
    for number in range(200):
        lines = [f"The title of {number}"] if number % 2 else []
        lines += [paragraph.format(number, each) for each in range(3)]
        documents.append("\n".join(lines))
    path.write_text("\n\n".join(documents))
    task = TASKS["text_search"]
    splits = {split: task.examples(path, split) for split in ("train", "dev", "test")}
    assert {each.texts[0] for each in splits["train"]} & {"The title of 1", "The title of 3"}
    for query, passage in (each.texts for some in splits.values() for each in some):
        number = passage.split()[1]
        assert query == f"The title of {number}" or query.startswith(f"document {number} ")
    sizes = [len({each.texts[1].split()[1] for each in some}) for some in splits.values()]
    assert sum(sizes) == 200 and min(sizes[1:]) > 2 and sizes[0] > 160
    few = task.model_copy(update={"per_document": 1, "max_examples": 100})
    assert len(few.examples(path, "train")) == 100
    assert task.examples(path, "dev") == splits["dev"]
    (tmp_path / "short.txt").write_text("one line")
    with pytest.raises(TaskDataError, match="no documents of two paragraphs"):
        task.examples(tmp_path / "short.txt", "train")


def test_a_long_title_is_not_its_own_paragraph(tmp_path):
    title = "The history of the old city of Rome in pictures"
    below = "The city was founded by twins who were raised by a wolf near the river"
    documents = [f"{title} {number}\n{below} {number}" for number in range(40)]
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join([*documents, title]))
    found = [
        each
        for split in ("train", "dev", "test")
        for each in TASKS["text_search"].examples(path, split)
    ]
    assert len(found) == 40 and all(each.texts[0] != each.texts[1] for each in found)


@pytest.mark.parametrize("name", ["squad_search", "docs_search", "text_search"])
def test_columns_are_no_options_of_them(name):
    task = TASKS[name].model_copy(update={"query_column": "q"})
    assert "query_column" in task.ignored_options()

"""Pairs for search that are made from other data."""

import json

import pytest

from bert_core.tasks.catalog import TASKS


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


@pytest.mark.parametrize("name", ["squad_search", "docs_search"])
def test_columns_are_no_options_of_them(name):
    task = TASKS[name].model_copy(update={"query_column": "q"})
    assert "query_column" in task.ignored_options()

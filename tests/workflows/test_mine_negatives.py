"""Negatives that a model ranks high, and what the tasks of search read of them."""

import json
from itertools import pairwise

import pytest
from finetuning_runs import WORDS, write_encoder

import bert_core
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.text_embedding import TextEmbedding
from workflows import mine_negatives


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_encoder(storage / "encoder")
    (storage / "data").mkdir()
    passages = [" ".join(WORDS[n % 7 : n % 7 + 3] * 2) for n in range(14)]
    pairs = [(WORDS[n % 10], passages[n]) for n in range(14)] + [(WORDS[0], passages[5])]
    lines = [json.dumps({"query": query, "passage": passage}) for query, passage in pairs]
    (storage / "data" / "train.jsonl").write_text("\n".join(lines))
    return storage


def mine(storage, output, *options):
    given = ["--model", str(storage / "encoder"), "--data", str(storage / "data")]
    return mine_negatives.main([*given, "--output", str(output), *options])


@pytest.mark.parametrize("margin", ["0", "0.95", "0.5"])
def test_negatives_rank_high_and_are_no_passages_of_the_query(storage, tmp_path, margin):
    output = tmp_path / "train.jsonl"
    assert mine(storage, output, "--margin", margin, "--count", "3") == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 15
    model = bert_core.load(storage / "encoder")
    belongs = {}
    for line in lines:
        belongs.setdefault(line["query"], set()).add(line["passage"])
    assert len(belongs[WORDS[0]]) == 3
    for line in lines:
        assert not belongs[line["query"]] & {*line["negatives"]} and len(line["negatives"]) <= 3
        query, own, *others = model.embed(
            [line["query"], line["passage"], *line["negatives"]], normalize=True
        )
        cosines = [float(query @ other) for other in others]
        assert cosines == sorted(cosines, reverse=True)
        if margin != "0":
            assert all(cosine < float(margin) * float(query @ own) + 1e-6 for cosine in cosines)
        assert line["passage"] in line["passages"]
        ones = {text for text, score in zip(line["passages"], line["scores"], strict=True) if score}
        assert ones <= belongs[line["query"]] and {*line["negatives"]} <= {*line["passages"]} - ones


def test_the_tasks_of_search_read_the_file(storage, tmp_path):
    assert mine(storage, tmp_path / "train.jsonl", "--count", "2", "--margin", "0") == 0
    pairs = TextEmbedding(negative_columns=("negatives",)).examples(tmp_path, "train")
    assert {len(each.texts) for each in pairs} == {4}
    lists = Reranking().examples(tmp_path, "train")
    assert len(lists) == 15 and all(1.0 in each.answer for each in lists)


def test_a_query_that_is_a_passage_is_no_negative_of_itself(storage, tmp_path):
    (tmp_path / "data").mkdir()
    texts = [" ".join(WORDS[n : n + 3]) for n in range(6)]
    lines = [json.dumps({"query": a, "passage": b}) for a, b in pairwise(texts)]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(lines))
    output = tmp_path / "train.jsonl"
    given = ("--margin", "0", "--count", "9", "--data", str(tmp_path / "data"))
    assert mine(storage, output, *given) == 0
    for line in map(json.loads, output.read_text().splitlines()):
        assert line["query"] not in line["negatives"] + line["passages"]
        assert len(line["negatives"]) == len(texts) - 2 - (line["query"] != texts[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--task", "mrpc"), "no task of pairs"),
        (("--options", "kind=scores"), "change only how data is read"),
        (("--options", "kind=labels"), "mined for pairs"),
        (("--options", "query_column=question"), "no column question"),
    ],
)
def test_wrong_input_is_one_line(storage, tmp_path, capsys, options, said):
    assert mine(storage, tmp_path / "out.jsonl", *options) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing half-written"


def test_an_output_that_is_there_stays(storage, tmp_path, capsys):
    (tmp_path / "out.jsonl").write_text("mine")
    assert mine(storage, tmp_path / "out.jsonl") == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text() == "mine"

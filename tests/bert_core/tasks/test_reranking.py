"""The task of rerankers: lists of passages as rows, three losses, orders and their metrics."""

import json
import math

import numpy as np
import pytest
import torch
from parity import random_model
from torch.nn import functional as F

from bert_core.config import ModelConfig
from bert_core.evaluation.metrics import measure
from bert_core.predictor import Predictor
from bert_core.tasks.encoded_rows import TaskBatchSource
from bert_core.tasks.reranking import Candidates, Reranking
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import compute_outputs, task_loss

LISTS = [
    Candidates("the cat", ("a mat", "the cat sat on a mat", "dogs run"), (0.0, 1.0, 0.0)),
    Candidates("dogs", ("dogs run far away", "a cat"), (1.0, 0.0)),
    Candidates(
        "slowly", ("the mat", "run slowly", "a cat sat slowly", "far"), (0.0, 1.0, 1.0, 0.0)
    ),
    Candidates("far", ("away", "a mat"), None),
]


@pytest.fixture
def model(tokenizer):
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return random_model(config, Reranking(), torch.float32)


def scores_of(task, model, tokenizer):
    rows = task.encode(LISTS, tokenizer)
    batch = rows.batch(np.arange(len(LISTS)), "packed")
    return rows, batch, compute_outputs(model, batch)


def expected_loss(objective, scores, answers):
    total = 0.0
    for some, answer in zip(scores, answers, strict=True):
        if answer is None:
            continue
        wanted = torch.tensor(answer)
        if objective == "binary":
            total += F.binary_cross_entropy_with_logits(some, wanted, reduction="sum")
        elif objective == "listwise":
            share = wanted / wanted.sum()
            total += -(share * some.log_softmax(0)).sum() * len(some)
        else:
            total += ((some - some[0]) - (wanted - wanted[0])).square().sum()
    return total


@pytest.mark.parametrize("objective", ["binary", "listwise", "margin"])
def test_the_loss_is_that_of_each_list(objective, tokenizer, model):
    task = Reranking(objective=objective)
    _, batch, outputs = scores_of(task, model, tokenizer)
    found, _ = task.loss(outputs, batch)
    counts = [len(each.passages) for each in LISTS]
    lists = outputs[:, 0].split(counts)
    torch.testing.assert_close(
        found, expected_loss(objective, lists, [each.answer for each in LISTS])
    )


@pytest.mark.parametrize("objective", ["binary", "listwise", "margin"])
def test_a_step_is_the_same_however_it_is_divided(objective, tokenizer, model):
    task = Reranking(objective=objective)
    rows = task.encode(LISTS, tokenizer)
    losses = []
    for max_tokens in (1, 1000):
        source = TaskBatchSource(rows, batch_size=4, max_tokens=max_tokens, seed=0, layout="packed")
        for world_size in (1, 2):
            steps = [source.step(0, rank, world_size) for rank in range(world_size)]
            parts = [
                task_loss(task, model, batch, **step.counts)
                for step in steps
                for batch in step.micro_batches
            ]
            assert sum(float(sums[2]) for _, sums in parts) == 9, "passages whose score is known"
            losses.append(sum(loss.item() for loss, _ in parts))
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)


def test_orders_and_the_first_stage_are_measured(tokenizer, model):
    task = Reranking()
    predictor = Predictor(model.eval(), tokenizer, task, "rerank")
    found, rows = predictor.predict_examples(LISTS)
    _, _, outputs = scores_of(task, model, tokenizer)
    lists = outputs[:, 0].detach().split([len(each.passages) for each in LISTS])
    for each, scores in zip(found, lists, strict=True):
        assert each["order"] == scores.argsort(descending=True, stable=True).tolist()
        np.testing.assert_allclose(each["scores"], scores.numpy(), atol=1e-5)
    assert "ndcg_at_10" not in found[3], "nobody knows which are relevant"
    metrics = task.metrics(found[:3], LISTS[:3])
    assert metrics["first_stage_mrr_at_10"] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    first = found[0]["order"].index(1)
    assert found[0]["ndcg_at_10"] == pytest.approx(1 / math.log2(first + 2), abs=1e-6)
    assert rows.num_tokens.tolist() == [
        sum(len(tokenizer.encode(each.query, passage)) for passage in each.passages)
        for each in LISTS
    ]


def test_lists_and_rows_of_one_passage_are_read_alike(tmp_path):
    lists = [{"query": each.query, "passages": each.passages, "scores": each.answer}
             for each in LISTS]  # fmt: skip
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lists))
    lines = ["query\tpassages\tscores"]
    for each in LISTS:
        answers = each.answer or [""] * len(each.passages)
        lines += [f"{each.query}\t{p}\t{s}" for p, s in zip(each.passages, answers, strict=True)]
    (tmp_path / "test.tsv").write_text("\n".join(lines) + "\n")
    for split in ("dev", "test"):
        found = Reranking().examples(tmp_path, split)
        assert [(each.query, each.passages, each.answer) for each in found] == [
            (each.query, each.passages, each.answer) for each in LISTS
        ]


def test_rows_of_one_passage_may_stand_in_any_order(tmp_path):
    lines = ["query\tpassages\tscores", "a\tp1\t1", "b\tp2\t1", "a\tp3\t0", "b\tp4\t0"]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    found = Reranking().examples(tmp_path, "dev")
    assert [(each.query, each.passages, each.answer) for each in found] == [
        ("a", ("p1", "p3"), (1.0, 0.0)),
        ("b", ("p2", "p4"), (1.0, 0.0)),
    ]


def test_a_query_without_a_relevant_passage_is_left_out_of_the_means(tokenizer, model):
    task = Reranking()
    judged = [*LISTS[:3], Candidates("a cat", ("two trees", "a mat"), (0.0, 0.0))]
    found, _ = Predictor(model.eval(), tokenizer, task, "rerank").predict_examples(judged)
    assert task.metrics(found, judged) == task.metrics(found[:3], judged[:3])
    assert measure(task, found, judged).is_fast
    assert set(task.metrics(found[3:], judged[3:]).values()) == {0.0}


def test_a_list_without_any_score_has_no_answer(tmp_path):
    line = {"query": "q", "passages": ["a", "b"]}
    lines = [line, line | {"scores": [None, None]}, line | {"scores": []}]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert [each.answer for each in Reranking().examples(tmp_path, "dev")] == [None] * 3


def test_training_keeps_the_most_relevant_of_many(tmp_path):
    passages = [f"passage {number}" for number in range(9)]
    line = {"query": "q", "passages": passages, "scores": [0, 0, 0, 0, 1, 0, 0, 0, 1]}
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(line) + "\n")
    task = Reranking(candidates=4)
    (train,), (dev,) = task.examples(tmp_path, "train"), task.examples(tmp_path, "dev")
    assert train.passages == ("passage 4", "passage 8", "passage 0", "passage 1")
    assert train.answer == (1, 1, 0, 0) and len(dev.passages) == 9


@pytest.mark.parametrize(
    ("objective", "line", "said"),
    [
        ("binary", {"scores": [3.0, 0.5]}, "a score of 3"),
        ("listwise", {"scores": [-1.0, 0.5]}, "a score of -1"),
        ("margin", {"scores": ["x", 0.5]}, "'x' is not a number"),
        ("binary", {"scores": [1.0]}, "1 scores of 2 passages"),
        ("binary", {"scores": [1.0, None]}, "1 scores of 2 passages"),
        ("binary", {"passages": ["a", 3]}, "no passages"),
        ("binary", {"passages": []}, "no passages"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_its_line(tmp_path, objective, line, said):
    whole = {"query": "q", "passages": ["a", "b"], "scores": [1.0, 0.0]}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(whole)}\n{json.dumps(whole | line)}\n")
    with pytest.raises(TaskDataError, match=said) as refused:
        Reranking(objective=objective).examples(tmp_path, "train")
    assert "train.jsonl:2" in str(refused.value)

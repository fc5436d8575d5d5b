"""The task of text embedding: rows, steps of any division, predictions."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_training import run_ranks
from training_processes import train_vectors

from bert_core.config import ModelConfig
from bert_core.evaluation.metrics import measure
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.predictor import Predictor, load_predictor
from bert_core.tasks.coupled_batches import CoupledBatchSource, told_steps, vector_loss
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.retrieval import METRICS, normalized
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import add_task_head, compute_outputs
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding
from bert_core.tokenizer_training import train_wordpiece
from bert_core.training.loop import dropout_seed

CPU = torch.device("cpu")
WORDS = ["a", "black", "cat", "sat", "on", "the", "red", "mat", "and", "one", "old", "dog", "ran"]
WORDS += ["by", "two", "tall", "trees"]
KINDS = ("pairs", "scores", "labels", "texts")


def sentence(number, length):
    return " ".join(
        WORDS[(number * 7 + place * (number + 1)) % len(WORDS)] for place in range(length)
    )


def examples_of(kind, count=12):
    if kind in ("labels", "texts"):
        answers = [True] * count if kind == "texts" else [f"class {n % 3}" for n in range(count)]
        return [RelatedTexts((sentence(n, 3 + n % 5),), answers[n]) for n in range(count)]
    pairs = [(sentence(n, 3), sentence(n % 5 + 40, 12)) for n in range(count)]
    if kind == "scores":
        return [RelatedTexts(pair, float(n % 4)) for n, pair in enumerate(pairs)]
    return [
        RelatedTexts((*pair, *[sentence(n + 60, 7)][: n % 2]), True) for n, pair in enumerate(pairs)
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece([" ".join(WORDS)] * 3, 200, lowercase=True)


@pytest.fixture
def model(tokenizer):
    return model_of(tokenizer)


def model_of(tokenizer, **changes):
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **changes,
    )
    torch.manual_seed(0)
    model = Bert(Encoder(config), {})
    add_task_head(model, TextEmbedding())
    return model


def gradients_of(model, task, rows, count, *, max_tokens):
    """Loss, sums and gradients of the first step, and its number of micro-batches."""
    source = CoupledBatchSource(
        task, rows, count, batch_size=8, max_tokens=max_tokens, seed=1, layout="packed"
    )
    model.zero_grad()
    loss, sums = torch.zeros(()), torch.zeros(3)
    steps = told_steps(
        source.steps(0), task, model, first=0, device=CPU, autocast_dtype=None, seed=5
    )
    step = next(steps)
    for index, batch in enumerate(step.micro_batches):
        torch.manual_seed(dropout_seed(5, 0, 0, index))
        share, some = vector_loss(task, model, batch)
        share.backward()
        loss, sums = loss + share.detach(), sums + some
    return loss, sums, [each.grad.clone() for each in model.parameters()], len(step.micro_batches)


@pytest.mark.parametrize("kind", ["pairs", "scores", "labels"])
def test_gradients_of_any_micro_batches_are_those_of_the_whole_step(kind, tokenizer):
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = model_of(tokenizer, **without)
    task, examples = TextEmbedding(kind=kind, matryoshka=(8,)), examples_of(kind)
    rows = task.encode(examples, tokenizer)
    *whole, one = gradients_of(model, task, rows, len(examples), max_tokens=100_000)
    *parts, several = gradients_of(model, task, rows, len(examples), max_tokens=16)
    assert one == 1 and several > 2
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-5, atol=1e-5)
    found, expected = (torch.cat([each.flatten() for each in some[2]]) for some in (parts, whole))
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_bare_texts_are_read_twice_with_other_dropout(tokenizer, model):
    task, examples = TextEmbedding(kind="texts"), examples_of("texts")
    rows = task.encode(examples, tokenizer)
    loss, sums, gradients, _ = gradients_of(model, task, rows, len(examples), max_tokens=100_000)
    assert 0 < loss < 20 and sums[1] <= 8
    assert any(bool((each != 0).any()) for each in gradients)


def test_both_passes_of_a_micro_batch_drop_the_same(tokenizer, model):
    """With dropout the second pass has the very vectors that the loss was told of."""
    seen = []

    class Watching(TextEmbedding):
        def step_loss(self, vectors, groups):
            seen.append(vectors.detach().clone())
            return super().step_loss(vectors, groups)

    task, examples = Watching(), examples_of("pairs")
    rows = task.encode(examples, tokenizer)
    source = CoupledBatchSource(
        task, rows, len(examples), batch_size=8, max_tokens=16, seed=1, layout="packed"
    )
    steps = told_steps(
        source.steps(3), task, model, first=3, device=CPU, autocast_dtype=None, seed=5
    )
    step = next(steps)
    for index, (batch, positions) in enumerate(
        zip(step.micro_batches, step.positions, strict=True)
    ):
        torch.manual_seed(dropout_seed(5, 3, 0, index))
        again = compute_outputs(model, batch.texts)
        assert torch.equal(again, seen[0][torch.from_numpy(positions)])
    model.eval()
    assert not torch.equal(compute_outputs(model, step.micro_batches[0].texts), again)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_texts_of_a_step(kind, world_size, tokenizer):
    task, examples = TextEmbedding(kind=kind), examples_of(kind)
    rows = task.encode(examples, tokenizer)
    source = CoupledBatchSource(
        task, rows, len(examples), batch_size=8, max_tokens=20, seed=1, layout="packed"
    )
    assert source.steps_per_epoch == 2
    shares = [source.step(0, rank, world_size) for rank in range(world_size)]
    positions = np.concatenate([each for share in shares for each in share.positions])
    assert sorted(positions.tolist()) == list(range(shares[0].num_texts))
    tokens = [sum(batch.num_real_tokens for batch in share.micro_batches) for share in shares]
    assert max(tokens) - min(tokens) <= 15, "ranks have equal work"


def test_a_text_that_examples_share_is_read_once(tokenizer):
    task = TextEmbedding(query_prompt="the ", passage_prompt="")
    pairs = [RelatedTexts((f"cat {n}", "red mat"), True) for n in range(6)]
    rows = task.encode([*pairs, RelatedTexts(("red mat", "red mat"), True)], tokenizer)
    assert len(rows.lengths) == 6 + 1 + 1, "a prompt makes another text"
    with_prompt, plain = rows.lengths[7], rows.lengths[1]
    assert with_prompt == plain + 1 and rows.num_tokens[6] == with_prompt + plain
    assert rows.example.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


def test_a_bare_text_is_no_wrong_answer_of_itself(tokenizer):
    task = TextEmbedding(kind="texts")
    texts = [RelatedTexts((text,), True) for text in ("a cat", "the mat", "a cat")]
    rows = task.encode(texts, tokenizer)
    found, groups = task.step_texts(rows, np.arange(3))
    assert found.tolist() == [0, 1, 0, 1] and groups.candidates.tolist() == [2, 3]
    scored = [RelatedTexts(("a cat", "the mat"), 3.0), RelatedTexts(("a cat", "a cat"), 5.0)]
    rows = task.encode(scored, tokenizer)
    _, groups = task.step_texts(rows, np.arange(2))
    assert groups.kind == "scores" and groups.values.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_vector_is_pooled_from_its_own_tokens(pooling, tokenizer, model):
    task = TextEmbedding(pooling=pooling)
    examples = examples_of("pairs")
    model.eval()
    rows = task.encode(examples, tokenizer)
    vectors, _ = compute_all_outputs(task, model, rows, device=CPU, max_tokens=30)
    assert vectors.shape == (len(rows.lengths), 32)
    for row in (0, 5, len(rows.lengths) - 1):
        batch = rows.batch(np.array([row]), "packed")
        with torch.no_grad():
            states = model.encoder(*batch.inputs)
        expected = states[0] if pooling == "cls" else states.mean(0)
        np.testing.assert_allclose(vectors[row], expected.numpy(), atol=1e-5)


def test_predictions_say_where_the_passage_ranks(tokenizer, model):
    task, examples = TextEmbedding(), examples_of("pairs")
    found, rows = Predictor(model.eval(), tokenizer, task, "embedding").predict_examples(examples)
    metrics = task.metrics(found, examples)
    assert metrics["mrr_at_10"] == pytest.approx(np.mean([1 / each["rank"] for each in found]))
    assert metrics["recall_at_100"] == 1 and json.dumps(found)
    twins = [RelatedTexts(("a cat", "a cat"), True), RelatedTexts(("two trees", "two trees"), True)]
    found, _ = Predictor(model, tokenizer, task, "embedding").predict_examples(twins)
    assert [each["rank"] for each in found] == [1, 1]
    assert all(each["value"] == pytest.approx(1) for each in found)


@pytest.mark.parametrize("prompt", ["", "the "])
def test_a_query_that_is_a_passage_is_no_wrong_answer_of_itself(tokenizer, model, prompt):
    task = TextEmbedding(query_prompt=prompt)
    texts = ["a cat sat", "two tall trees", "the red mat", "one old dog"]
    chain = [RelatedTexts(pair, True) for pair in pairwise(texts)]
    found, _ = Predictor(model.eval(), tokenizer, task, "embedding").predict_examples(chain)
    for each, example in zip(found, chain, strict=True):
        assert each["nearest"] != example.texts[0] and each["rank"] <= 3
    assert found[1]["rank"] <= 2, "of three passages one is the query"
    if not prompt:
        _, groups = task.step_texts(task.encode(chain, tokenizer), np.arange(3))
        is_itself = groups.queries[:, None] == groups.candidates[None, :]
        assert is_itself.any() and groups.blocked[is_itself].all()


def test_a_query_counts_once_however_many_passages_it_has():
    task = TextEmbedding()
    pairs = [("a cat", "a cat sat"), ("a cat", "a cat sat on"), ("a cat", "cat"), ("one", "mat")]
    examples = [RelatedTexts(pair, True) for pair in pairs]
    found = [dict.fromkeys(METRICS, value) for value in (1.0, 1.0, 1.0, 0.0)]
    assert task.metrics(found, examples) == dict.fromkeys(METRICS, 0.5)
    assert measure(task, found, examples).is_fast


def test_other_kinds_predict_cosines_and_neighbours(tokenizer, model):
    predictor = Predictor(model.eval(), tokenizer, TextEmbedding(kind="scores"), "embedding")
    pairs = [
        RelatedTexts(("a cat", "a cat"), 5.0),
        RelatedTexts(("a cat", "two tall trees ran"), 1.0),
        RelatedTexts(("the red mat", "one old dog and two trees"), 0.0),
    ]
    found, _ = predictor.predict_examples(pairs)
    assert max(each["value"] for each in found) == found[0]["value"]
    assert predictor.task.metrics(found, pairs)["spearman"] >= 0.5
    labelled = [
        RelatedTexts((text,), label)
        for text, label in (
            ("a cat sat", "x"),
            ("a cat sat on", "x"),
            ("two tall trees", "y"),
            ("two tall old trees", "y"),
        )
    ]
    task = TextEmbedding(kind="labels")
    found, _ = Predictor(model, tokenizer, task, "embedding").predict_examples(labelled)
    assert task.metrics(found, labelled) == {"accuracy": 1.0}


def test_tables_are_read_by_their_columns(tmp_path):
    lines = [
        {"q": "Who?", "p": "He.", "n": ["She.", "It."]},
        {"q": "When?", "p": "Now.", "n": None},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = TextEmbedding(query_column="q", passage_column="p", negative_columns=("n",))
    assert [each.texts for each in task.examples(tmp_path, "train")] == [
        ("Who?", "He.", "She.", "It."),
        ("When?", "Now."),
    ]
    (tmp_path / "dev.tsv").write_text("query\tpassage\tscore\nWho?\tHe.\t4.5\nWhen?\tNow.\t\n")
    scored = TextEmbedding(kind="texts").examples(tmp_path, "dev")
    assert [each.answer for each in scored] == [4.5, None]
    with pytest.raises(TaskDataError, match="no column query"):
        TextEmbedding().examples(tmp_path, "train")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"kind": "labels", "query_column": "q"}, "query_column"),
        ({"kind": "scores", "negative_columns": ("n",)}, "negative_columns"),
        ({"kind": "pairs", "score_column": "s"}, "score_column"),
    ],
)
def test_columns_of_another_kind_are_no_options(options, name):
    assert name in TextEmbedding(**options).ignored_options()


@pytest.mark.slow
def test_two_ranks_have_the_losses_of_one(tmp_path):
    """The ranks' vectors meet before the loss; dropout, which is a rank's own, is off."""
    for num_ranks in (1, 2):
        run_ranks(train_vectors, num_ranks, tmp_path)
    alone, first, second = (
        torch.load(tmp_path / f"vectors{name}.pt") for name in ("0-of-1", "0-of-2", "1-of-2")
    )
    assert first[0] == second[0], "all ranks read the same"
    for found, expected in zip(first[0], alone[0], strict=True):
        assert found[0] == pytest.approx(expected[0], rel=1e-4)
        assert found[1] == pytest.approx(expected[1], rel=1e-4)
        assert found[2] == pytest.approx(expected[2], rel=1e-3)
    assert alone[0][-1][0] != alone[0][0][0]


def test_a_folder_of_sentence_transformers_is_measured_as_it_is(minilm_folder):
    predictor = load_predictor(minilm_folder, task_name="docs_search")
    task = predictor.task
    assert (task.pooling, task.max_length) == ("mean", 256)
    pairs = [RelatedTexts(("numpy mean", f"{word} of an array"), True) for word in WORDS]
    rows = task.encode(pairs, predictor.tokenizer)
    found, _ = compute_all_outputs(task, predictor.model, rows, device=CPU)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair.texts))
    expected = SentenceTransformer(str(minilm_folder), device="cpu").encode(texts)
    np.testing.assert_allclose(normalized(found), expected, atol=1e-5)

"""The loss of a student: what it is defined as, and that parts of a batch add up, by task."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX, ModelConfig, ModernConfig
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.settings import DistillationSettings
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.distillation import (
    TaughtRows,
    distilled_loss,
    kind_of_answers,
    soft_loss,
    targets_of,
)
from bert_core.tasks.encoded_rows import TaskBatchSource
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.reranking import Reranking
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head, task_loss
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.tokenizer_training import train_wordpiece

WORDS = ["ba", "keli", "monu", "rashi", "to", "vuza", "bali", "shito"]
TEXTS = [" ".join(WORDS[n % 8 :] + WORDS[: n % 5]) for n in range(10)]


def texts(answers):
    return [Text(text, None, answer) for text, answer in zip(TEXTS, answers, strict=True)]


def tags(number):
    return [("O", "A")[(number + place) % 2] for place in range(len(TEXTS[number].split()))]


TASKS = {
    "label": (
        Classification(labels=("x", "y", "z")),
        texts(["x", "y", "z", None, "x", "y", "z", None, "x", None]),
    ),
    "several": (
        Classification(kind="multiple", labels=("x", "y")),
        texts([("x",), (), ("x", "y"), None, ("y",), (), None, ("x",), None, ("y",)]),
    ),
    "number": (
        Classification(kind="regression"),
        texts([0.5, 1.0, None, 2.0, 0.0, 1.5, None, 0.5, 1.0, None]),
    ),
    "tags": (
        Tagging(labels=("O", "A")),
        [TaggedSentence(t.split(), tags(n) if n % 3 else None) for n, t in enumerate(TEXTS)],
    ),
    "choice": (
        MultipleChoice(),
        [
            Choices(text, ("ba", "keli to"), n % 2 if n % 3 else None)
            for n, text in enumerate(TEXTS)
        ],
    ),
    "passage": (
        QuestionAnswering(max_length=24, stride=4),
        [
            Question("", "ba to", text, (Answer(text[:2], 0),) if n % 3 else None)
            for n, text in enumerate(TEXTS)
        ],
    ),
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece([" ".join(WORDS)] * 3, 200, lowercase=True)


def taught(kind, tokenizer, known=True):
    """Task, model and rows that somebody has taught; without `known` not the first places."""
    task, examples = TASKS[kind]
    config = ModelConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = Bert(Encoder(config), {})
    add_task_head(model, task)
    rows = task.encode(examples, tokenizer)
    generator = np.random.default_rng(1)
    shape = len(rows.places), task.head.num_outputs
    targets = generator.normal(0, 2, shape).astype(np.float32)
    if not known:
        targets[: rows.place_counts[: rows.rows_per_item[0]].sum()] = np.nan
    return task, model, TaughtRows.joined([(rows, targets)])


def gradients(task, model, rows, *, world_size, max_tokens, alpha=0.7):
    """Summed over micro-batches and ranks, of one step of all examples; and the summed loss."""
    settings = DistillationSettings(temperature=2, alpha=alpha)
    source = TaskBatchSource(rows, batch_size=100, max_tokens=max_tokens, seed=0, layout="packed")
    model.zero_grad()
    total = 0.0
    for rank in range(world_size):
        step = source.step(0, rank, world_size)
        for batch in step.micro_batches:
            loss, _ = distilled_loss(task, model, batch, settings=settings, **step.counts)
            loss.backward()
            total += float(loss.detach())
    found = {name: each.grad.clone() for name, each in model.named_parameters()}
    return total, found


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", TASKS)
def test_micro_batches_and_ranks_add_up_to_the_whole_batch(kind, known, tokenizer):
    task, model, rows = taught(kind, tokenizer, known)
    whole, expected = gradients(task, model, rows, world_size=1, max_tokens=10_000)
    for world_size, max_tokens in ((1, 40), (3, 40), (20, 40)):
        loss, found = gradients(task, model, rows, world_size=world_size, max_tokens=max_tokens)
        assert loss == pytest.approx(whole, rel=1e-5)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", TASKS)
def test_without_a_share_for_the_teacher_the_loss_is_that_of_labels(kind, tokenizer):
    task, model, rows = taught(kind, tokenizer)
    batch = rows.batch(np.arange(rows.num_items), "packed")
    nothing = DistillationSettings(alpha=0)
    found, sums = distilled_loss(task, model, batch, num_labels=10, settings=nothing)
    expected, plain = task_loss(task, model, batch, num_labels=10)
    assert torch.equal(found, expected) and torch.equal(sums[:3], plain)
    everything = DistillationSettings(alpha=1)
    found, _ = distilled_loss(task, model, batch, num_labels=10, settings=everything)
    labels = torch.full_like(
        batch.labels, torch.nan if batch.labels.is_floating_point() else IGNORE_INDEX
    )
    object.__setattr__(batch, "labels", labels)
    again, sums = distilled_loss(task, model, batch, num_labels=10, settings=everything)
    assert torch.equal(found, again) and sums[2] == 0 < sums[4]


def soft(kind, tokenizer, outputs_of, temperature=2.0):
    task, _, rows = taught(kind, tokenizer)
    batch = rows.batch(np.arange(rows.num_items), "packed")
    outputs = outputs_of(batch)
    return soft_loss(task, outputs, batch, temperature)[0], outputs, batch


def test_it_is_what_it_is_defined_as(tokenizer):
    def draw(batch):
        return torch.randn(batch.targets.shape, generator=torch.Generator().manual_seed(5))

    for kind in ("label", "tags"):
        found, outputs, batch = soft(kind, tokenizer, draw)
        wanted = (batch.targets / 2).softmax(1)
        expected = 4 * F.cross_entropy(outputs / 2, wanted, reduction="sum")
        torch.testing.assert_close(found, expected)
    found, outputs, batch = soft("several", tokenizer, draw)
    wanted = (batch.targets / 2).sigmoid()
    expected = 4 * F.binary_cross_entropy_with_logits(outputs / 2, wanted, reduction="none")
    torch.testing.assert_close(found, expected.mean(1).sum())
    found, outputs, batch = soft("number", tokenizer, draw)
    torch.testing.assert_close(found, F.mse_loss(outputs, batch.targets, reduction="sum"))
    found, outputs, batch = soft("choice", tokenizer, draw)
    scores, wanted = outputs.view(-1, 2), batch.targets.view(-1, 2)
    expected = 4 * F.cross_entropy(scores / 2, (wanted / 2).softmax(1), reduction="sum")
    torch.testing.assert_close(found, expected)
    found, outputs, batch = soft("passage", tokenizer, draw)
    counts = batch.place_counts.tolist()
    rows = zip(outputs.split(counts), batch.targets.split(counts), strict=True)
    each = [
        F.cross_entropy(mine.T / 2, (his.T / 2).softmax(1), reduction="sum") for mine, his in rows
    ]
    torch.testing.assert_close(found, 4 * sum(each) / 2)


@pytest.mark.parametrize("kind", TASKS)
def test_nobody_is_better_than_the_teacher(kind, tokenizer):
    def as_taught(batch):
        return batch.targets.clone().requires_grad_()

    loss, outputs, _ = soft(kind, tokenizer, as_taught)
    loss.backward()
    assert float(outputs.grad.abs().max()) < 1e-5


def test_a_teacher_with_other_words_and_windows_answers_by_example_and_by_word(tokenizer):
    task = Classification(labels=("y", "x"), max_length=64)
    teacher = Classification(labels=("x", "y"), max_length=8, overflow="window")
    other = train_wordpiece([" ".join(each)[:40] for each in (WORDS, "abc")], 40, lowercase=True)
    examples = texts([None] * 10)
    rows, read = task.encode(examples, tokenizer), teacher.encode(examples, other)
    assert len(read.lengths) > len(rows.lengths) == 10
    outputs = np.stack([read.example, -read.example], axis=1).astype(np.float32)
    targets = targets_of(task, rows, teacher, read, outputs)
    assert np.allclose(targets, [[-n, n] for n in range(10)], atol=1e-5), "in the student's order"

    task = Tagging(labels=("A", "O"), max_length=64)
    teacher = Tagging(labels=("A", "O"), max_length=12, overflow="right")
    sentences = [TaggedSentence(text.split()) for text in TEXTS]
    rows, read = task.encode(sentences, tokenizer), teacher.encode(sentences, other)
    words = read.notes["words"].astype(np.float32)
    targets = targets_of(task, rows, teacher, read, np.stack([words, words], axis=1))
    is_read = np.isin(rows.notes["words"], read.notes["words"])
    assert 0 < is_read.sum() < len(is_read)
    assert np.isnan(targets[~is_read]).all()
    assert (targets[is_read, 0] == rows.notes["words"][is_read]).all()


def test_joined_rows_are_those_of_each_part(tokenizer):
    task, examples = TASKS["tags"]
    parts = [task.encode(some, tokenizer) for some in (examples[:4], examples[4:])]
    whole = task.encode(examples, tokenizer)
    joined = TaughtRows.joined(
        [(rows, np.zeros((len(rows.places), 2), dtype=np.float32)) for rows in parts]
    )
    for name in ("input_ids", "lengths", "places", "labels", "example", "num_tokens"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name)), name
    assert np.array_equal(joined.label_counts, whole.place_counts), "all are taught"


def test_tasks_without_logits_of_answers_have_none():
    assert kind_of_answers(TextEmbedding()) is None and kind_of_answers(Reranking()) is None


@pytest.mark.parametrize(("count", "kept"), [(6, [0, 2, 4, 7, 9, 11]), (2, [0, 11]), (1, [0])])
def test_kept_layers_are_evenly_spaced(count, kept, tokenizer, tmp_path):
    config = ModelConfig(
        vocab_size=200, hidden_size=8, num_hidden_layers=12, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    whole = Bert.for_pretraining(config)
    for number, layer in enumerate(whole.encoder.layers):
        layer.output.bias.data.fill_(number)
    save_model_folder(tmp_path / "whole", whole, tokenizer)
    config, model, _ = load_model_folder(
        tmp_path / "whole", changes={"num_hidden_layers": count, "hidden_dropout_prob": 0.3}
    )
    assert [int(layer.output.bias[0]) for layer in model.encoder.layers] == kept
    assert config == model.config and config.num_hidden_layers == count
    assert model.encoder.embeddings.dropout == config.hidden_dropout_prob == 0.3
    save_model_folder(tmp_path / "few", model, tokenizer)
    assert len(load_model_folder(tmp_path / "few")[1].encoder.layers) == count
    with pytest.raises(ValueError, match="13 layers of 12"):
        whole.encoder.keep_layers(13)


@pytest.mark.parametrize(
    ("count", "kept"),
    [
        (11, [0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19]),
        (7, [0, 1, 2, 12, 13, 14, 21]),
        (4, [0, 1, 2, 21]),
        (2, [0, 1]),
        (22, list(range(22))),
    ],
)
def test_layers_that_take_turns_are_kept_by_whole_turns(count, kept, tokenizer, tmp_path):
    config = ModernConfig(
        vocab_size=200, hidden_size=8, num_hidden_layers=22, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16, local_attention=4, pad_token_id=0,
    )  # fmt: skip
    whole = Bert.for_pretraining(config, next_sentence=False)
    for number, layer in enumerate(whole.encoder.layers):
        layer.output.weight.data.fill_(number)
    save_model_folder(tmp_path / "whole", whole, tokenizer)
    _, model, _ = load_model_folder(tmp_path / "whole", changes={"num_hidden_layers": count})
    layers = list(model.encoder.layers)
    assert [int(layer.output.weight[0, 0]) for layer in layers] == kept
    fresh = Encoder(model.config)  # whose layers are global and local where the folder says so
    assert [layer.reach for layer in layers] == [layer.reach for layer in fresh.layers]
    save_model_folder(tmp_path / "few", model, tokenizer)
    again = load_model_folder(tmp_path / "few")[1].state_dict()
    assert all(torch.equal(each, again[name]) for name, each in model.state_dict().items())

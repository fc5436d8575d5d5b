"""Pre-training with a teacher: its loss, exact resuming, shares that add up, who may teach."""

import pytest
import torch
from pretraining_runs import Run, train_here, write_corpus
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX, ModelConfig
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.pretraining import SUM_NAMES, TokenTeacher, compute_loss
from bert_core.settings import BatchSettings, DistillationSettings, RowSettings
from bert_core.text.batches import BatchSource
from bert_core.text.masking import Vocabulary
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.tokenizer_training import train_wordpiece
from bert_core.training.checkpoint import newest_checkpoint
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import parse_command_line


def model_of(vocabulary, layers, **changes):
    config = ModelConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        **changes,
    )
    torch.manual_seed(layers)
    model = Bert.for_pretraining(config)
    for weight in model.parameters():
        weight.data *= 3  # it is sure of something
    return model


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    shards = write_corpus(storage / "shards")
    tokenizer = load_tokenizer(shards)
    teacher = model_of(tokenizer.get_vocab_size(), layers=2)
    save_model_folder(storage / "teacher", teacher, tokenizer)
    return storage


def run_of(storage, name, **settings):
    given = {"teacher": storage / "teacher", "checkpoint.every_steps": 4, **settings}
    return Run(storage, name, storage / "shards", steps=10, settings=given)


def weights(run):
    return (newest_checkpoint(run.checkpoints)[0] / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_stopped_and_resumed_it_ends_bit_equal(storage):
    whole = run_of(storage, "whole")
    train_here(whole)
    parts = run_of(storage, "parts")
    for stop_after in (6, -1):
        train_here(parts, stop_after)
    assert weights(whole) == weights(parts)
    alone = Run(storage, "alone", storage / "shards", steps=10)
    train_here(alone)
    assert weights(alone) != weights(whole)
    trained = [figures for _, figures in whole.records() if "train/loss" in figures]
    assert all(figures["train/loss_to_teacher"] > 0 for figures in trained)


def steps_of(storage, micro_batch_size, world_size):
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(storage / "shards"))
    source = BatchSource(
        open_shards(storage / "shards", "train"),
        vocabulary,
        rows=RowSettings(),
        batch=BatchSettings(global_batch_size=8, micro_batch_size=micro_batch_size),
        sequence_length=32,
        seed=0,
        phase=0,
    )
    return [source.step(0, rank, world_size) for rank in range(world_size)]


def test_shares_add_up_to_the_whole_batch(storage):
    _, teacher, tokenizer = load_model_folder(storage / "teacher")
    teacher = TokenTeacher(teacher.eval(), DistillationSettings(alpha=0.7))
    student = model_of(tokenizer.get_vocab_size(), layers=1).eval()

    def gradient(micro_batch_size, world_size):
        student.zero_grad()
        total = 0.0
        for step in steps_of(storage, micro_batch_size, world_size):
            for batch in step.micro_batches:
                loss, sums = compute_loss(student, batch, **step.counts, teacher=teacher)
                assert len(sums) == len(SUM_NAMES) + 1
                loss.backward()
                total += float(loss.detach())
        return total, torch.cat([each.grad.flatten() for each in student.parameters()])

    whole, expected = gradient(8, 1)
    for micro_batch_size, world_size in ((3, 1), (8, 2), (1, 3)):
        loss, found = gradient(micro_batch_size, world_size)
        assert loss == pytest.approx(whole, rel=1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_it_is_what_it_is_defined_as(storage):
    _, theirs, tokenizer = load_model_folder(storage / "teacher")
    theirs.eval()
    student = model_of(tokenizer.get_vocab_size(), layers=1).eval()
    ((step,), settings) = steps_of(storage, 8, 1), DistillationSettings(alpha=1.0, temperature=3)
    (batch,) = step.micro_batches
    used = batch.masked_ids != IGNORE_INDEX
    logits = [
        model.heads["masked_token"](
            model.encoder(*batch.inputs, batch.masked_positions), model.encoder.word_embeddings
        )[used]
        for model in (student, theirs)
    ]
    counts = {"num_predictions": int(used.sum()), "num_rows": 8}
    plain, plain_sums = compute_loss(student, batch, **counts)
    soft = F.cross_entropy(logits[0] / 3, (logits[1] / 3).softmax(1)) * 9
    right = F.cross_entropy(logits[0], batch.masked_ids[used])
    found, sums = compute_loss(student, batch, **counts, teacher=TokenTeacher(theirs, settings))
    torch.testing.assert_close(found, plain - right + soft)
    torch.testing.assert_close(sums[:6], plain_sums)
    nothing = TokenTeacher(theirs, replace_alpha(settings, 0.0))
    found, _ = compute_loss(student, batch, **counts, teacher=nothing)
    torch.testing.assert_close(found, plain)


def replace_alpha(settings, alpha):
    return settings.model_copy(update={"alpha": alpha})


def test_a_run_without_a_teacher_keeps_its_recipe(storage):
    def recipe(run):
        return parse_command_line(PretrainSettings, run.arguments()).recipe()

    alone = Run(storage, "alone", storage / "shards", steps=10)
    assert not recipe(alone).keys() & {"teacher", "distillation"}
    assert recipe(run_of(storage, "taught")).keys() - recipe(alone).keys() == {"distillation"}


def test_who_cannot_predict_these_tokens_is_no_teacher(storage):
    other = train_wordpiece(["some other words of another text"] * 3, 60, lowercase=True)
    save_model_folder(storage / "other", model_of(60, layers=1), other)
    with pytest.raises(UserError, match="another tokenizer than the shards"):
        train_here(run_of(storage, "refused", teacher=storage / "other"))
    _, model, tokenizer = load_model_folder(storage / "teacher")
    del model.heads["masked_token"]
    save_model_folder(storage / "headless", model, tokenizer)
    with pytest.raises(UserError, match="without a masked-token head"):
        train_here(run_of(storage, "refused", teacher=storage / "headless"))
    short = model_of(tokenizer.get_vocab_size(), layers=1)
    short.encoder.embeddings.position = torch.nn.Embedding(16, 32)
    short.encoder.config = short.config.model_copy(update={"max_position_embeddings": 16})
    save_model_folder(storage / "short", short, tokenizer)
    with pytest.raises(UserError, match="rows of 32 tokens, the teacher has 16 positions"):
        train_here(run_of(storage, "refused", teacher=storage / "short"))
    alone = Run(storage, "alone", storage / "shards", 10, {"distillation.alpha": 0.5})
    with pytest.raises(UserError, match="give --teacher MODEL"):
        train_here(alone)

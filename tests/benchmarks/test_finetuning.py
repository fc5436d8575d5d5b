"""Our fine-tuning next to transformers' Trainer and next to a plain loop."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_tasks import WRITERS, write_data, write_encoder

from benchmarks import finetuning
from benchmarks.finetuning_arms import (
    PlainLoop,
    Recipe,
    our_training,
    their_features,
    their_outputs,
    their_trainer,
    train_in_turns,
    write_start,
)
from bert_core.model_folder import load_model_folder
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.task import task_loss


def test_whole_passes_of_both_arms_are_timed(tmp_path, monkeypatch, capsys):
    data, encoder = write_data("squad", tmp_path / "data"), write_encoder(tmp_path / "encoder")
    path = tmp_path / "folder" / "results.json"
    command = (
        f"benchmark --task squad --data {data} --model {encoder} --examples 20 --batch 4 "
        f"--passes 2 --json {path}"
    )
    monkeypatch.setattr(sys, "argv", command.split())
    finetuning.main()
    results = json.loads(path.read_text())
    assert results["difference"] < 1e-5
    assert (results["items"], results["steps_of_a_pass"]) == (20, 1)
    assert 3 <= results["mean_length"] <= results["longest"]
    arms = results["arms"]
    assert list(arms) == ["ours", "transformers"]
    for arm in arms.values():
        assert len(arm["seconds_of_passes"]) == 2
        rates = [4 / seconds for seconds in arm["seconds_of_passes"]]
        assert min(rates) <= arm["examples_per_second"] <= max(rates)
    ours, theirs = (arm["seconds_of_passes"] for arm in arms.values())
    ratios = [slow / fast for slow, fast in zip(theirs, ours, strict=True)]
    assert results["ratios_of_passes"] == pytest.approx(ratios)
    assert str(tmp_path) not in path.read_text()
    assert f"ours is {results['ratio']:.2f} times as fast" in capsys.readouterr().out


def test_arms_that_disagree_are_no_benchmark(tmp_path, monkeypatch):
    data, encoder = write_data("mrpc", tmp_path / "data"), write_encoder(tmp_path / "encoder")
    monkeypatch.setattr(finetuning, "their_outputs", lambda *_: 5.0)
    command = f"benchmark --task mrpc --data {data} --model {encoder} --examples 8 --batch 4"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(AssertionError, match="the arms' answers differ"):
        finetuning.main()


def test_a_pass_is_timed_to_its_last_step():
    made = []
    arms = [finetuning.Arm("a", lambda: made.append("a")), finetuning.Arm("b", None)]
    for _ in finetuning.time_pass(arms, 12, finetuning.torch.device("cpu")):
        made.append("b")
    assert made.count("a") == made.count("b") == 12
    # Turns of five steps; who begins changes.
    assert made[:10] == ["b"] * 5 + ["a"] * 5 and made[10:20] == ["a"] * 5 + ["b"] * 5


def test_a_pass_is_a_stretch_of_batches_that_the_trainer_sorts():
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = finetuning.np.random.default_rng(0).integers(5, 90, 700).tolist()
    steps = finetuning.stretch(700, 32)
    order = get_length_grouped_indices(lengths, 32)
    sorted_again = [
        index
        for index in range(1, 700)
        if lengths[order[index]] > lengths[order[index - 1]] and index % (steps * 32)
    ]
    assert all(index <= 1 for index in sorted_again)  # the longest of all comes first
    assert finetuning.stretch(10, 32) == 1 and finetuning.stretch(10**6, 32) == 50


def test_the_last_step_of_an_epoch_has_what_is_left():
    # 10 items in steps of 4: 4, 4, 2, 4, 4, 2, …; five steps of warming up come first.
    assert finetuning.items_of_pass(0, 3, 10, 4) == 2 + 4 + 4
    assert finetuning.items_of_pass(1, 4, 10, 4) == 4 + 4 + 2 + 4


RECIPE = Recipe(
    FinetuningOptimizerSettings(peak_learning_rate=1e-3),
    batch_size=8,
    total_steps=6,
    seed=1,
    device=torch.device("cpu"),
)


@pytest.fixture
def begin(tmp_path):
    """Makes a task, its rows, and the folder that all arms start from."""

    def make(name, **options):
        task = TASKS[name]
        examples = task.examples(write_data(name, tmp_path / "data"), "train")
        task = task.with_labels(examples)
        encoder = write_encoder(tmp_path / "encoder")
        write_start(name, task, encoder, tmp_path / "start", seed=1, **options)
        return task, task.encode(examples, load_model_folder(encoder)[2]), tmp_path / "start"

    return make


@pytest.mark.parametrize("name", list(WRITERS))
def test_the_trainer_reads_the_same_labels_and_starts_from_the_same_weights(begin, name):
    task, rows, folder = begin(name)
    trainer = their_trainer(task, rows, folder, RECIPE, fastest=False)
    model, _, _ = our_training(task, rows, folder, RECIPE)
    features = their_features(task, rows)
    assert len(features) == rows.num_items
    trainer.model.eval()
    model.eval()
    items = np.arange(20)  # of many lengths, three groups of the Trainer's
    count = int(rows.label_counts[items].sum())
    ours, _ = task_loss(task, model, rows.batch(items, "packed"), num_labels=count)
    theirs = trainer.model(**trainer.data_collator([features[item] for item in items])).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_the_trainer_makes_as_many_steps_as_it_is_told(begin):
    task, rows, folder = begin("mrpc")
    trainer = their_trainer(task, rows, folder, RECIPE, fastest=False)
    before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    finished = []

    def turns():
        for _ in range(3):
            finished.append(trainer.state.global_step)
            yield

    train_in_turns(trainer, turns())
    assert finished == [0, 1, 2]
    assert trainer.state.global_step == 3
    changed = [
        name for name, each in trainer.model.state_dict().items() if (each != before[name]).any()
    ]
    assert any("classifier" in name or "qa_outputs" in name for name in changed)
    assert any("encoder" in name for name in changed)


def test_what_the_trainer_raises_arrives(begin):
    task, rows, folder = begin("mrpc")
    trainer = their_trainer(task, rows, folder, RECIPE, fastest=False)

    def fail(features):
        raise ValueError("no such batch")

    trainer.data_collator = fail
    with pytest.raises(ValueError, match="no such batch"):
        train_in_turns(trainer, iter([None]))


TWELVE_STEPS = replace(RECIPE, total_steps=12)


@pytest.mark.parametrize("name", list(WRITERS))
def test_the_loop_answers_as_the_trainer_does_and_teaches_all(begin, name):
    start = begin(name, attention_dropout=0.0)
    loop = PlainLoop(*start, TWELVE_STEPS)
    trainer = their_trainer(*start, TWELVE_STEPS, fastest=True)
    before = their_outputs(start[0], start[1], loop)
    assert np.abs(before - their_outputs(start[0], start[1], trainer)).max() == 0
    assert loop.model.training
    weights = {name: each.clone() for name, each in loop.model.state_dict().items()}
    loop.step()
    changed = {
        name for name, each in loop.model.state_dict().items() if (each != weights[name]).any()
    }
    assert changed >= {name for name in weights if "attention.self.value.weight" in name}
    assert any("classifier" in name or "qa_outputs" in name for name in changed)


def test_batches_are_alike_in_length_and_an_epoch_has_every_row_once(begin):
    task, rows, folder = begin("mrpc")
    loop = PlainLoop(task, rows, folder, TWELVE_STEPS)
    sizes, seen = [], []

    def collate(features):
        sizes.append(len(features))
        seen.extend(tuple(each["input_ids"]) for each in features)
        return original(features)

    original, loop.data_collator = loop.data_collator, collate
    for _ in range(4):  # 30 rows in steps of 8
        loop.step()
    assert sizes == [8, 8, 8, 6]
    whole = np.split(rows.input_ids, np.cumsum(rows.lengths)[:-1])
    assert sorted(seen) == sorted(tuple(each.tolist()) for each in whole)


def test_the_rate_rises_and_falls_to_its_end(begin):
    loop = PlainLoop(*begin("mrpc"), TWELVE_STEPS)
    rates = []
    for _ in range(12):
        loop.step()
        rates.append(loop.optimizer.param_groups[0]["lr"])
    assert max(rates) == TWELVE_STEPS.optimizer.peak_learning_rate
    assert rates[TWELVE_STEPS.warmup_steps :] == sorted(
        rates[TWELVE_STEPS.warmup_steps :], reverse=True
    )
    assert 0 < rates[-1] < 0.2 * max(rates)


def test_attention_dropout_is_that_which_was_asked_for(begin):
    _, _, folder = begin("mrpc", attention_dropout=0.0)
    assert load_model_folder(folder)[0].attention_probs_dropout_prob == 0

import numpy as np
import pytest
import torch
from small_tasks import WRITERS, write_data, write_encoder

from benchmarks.finetuning.arms import Recipe, their_outputs, their_trainer, write_start
from benchmarks.finetuning.loop import PlainLoop
from bert_core.model_folder import load_model_folder
from bert_core.tasks.catalog import TASKS
from bert_core.training.settings import FinetuningOptimizerSettings

RECIPE = Recipe(
    FinetuningOptimizerSettings(peak_learning_rate=1e-3),
    batch_size=8,
    total_steps=12,
    seed=1,
    device=torch.device("cpu"),
)


@pytest.fixture
def begin(request, tmp_path):
    """Makes the rows and the folder of a task; gives both with the task."""

    def make(name):
        task = TASKS[name]
        examples = task.examples(write_data(name, tmp_path / "data"), "train")
        task = task.with_labels(examples)
        encoder = write_encoder(tmp_path / "encoder")
        write_start(name, task, encoder, tmp_path / "start", seed=1, attention_dropout=0.0)
        return task, task.encode(examples, load_model_folder(encoder)[2]), tmp_path / "start"

    return make


@pytest.mark.parametrize("name", list(WRITERS))
def test_the_loop_answers_as_the_trainer_does_and_teaches_all(begin, name):
    start = begin(name)
    loop = PlainLoop(*start, RECIPE)
    trainer = their_trainer(*start, RECIPE, fastest=True)
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
    loop = PlainLoop(task, rows, folder, RECIPE)
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
    loop = PlainLoop(*begin("mrpc"), RECIPE)
    rates = []
    for _ in range(12):
        loop.step()
        rates.append(loop.optimizer.param_groups[0]["lr"])
    assert max(rates) == RECIPE.optimizer.peak_learning_rate
    assert rates[RECIPE.warmup_steps :] == sorted(rates[RECIPE.warmup_steps :], reverse=True)
    assert 0 < rates[-1] < 0.2 * max(rates)


def test_attention_dropout_is_that_which_was_asked_for(begin):
    _, _, folder = begin("mrpc")
    assert load_model_folder(folder)[0].attention_probs_dropout_prob == 0
